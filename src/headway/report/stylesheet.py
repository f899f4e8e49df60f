"""The page's only stylesheet. Colours are variables, so that plots and text change scheme together."""

from __future__ import annotations

from headway.report.plots import DARK, LIGHT


def _variables(palette: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in palette.items())


_RULES = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main,header,nav,footer{max-width:1060px;margin:0 auto;padding:0 28px}
header{padding-top:40px}
h1{font-size:30px;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:21px;line-height:1.3;margin:52px 0 12px;padding-top:14px;border-top:1px solid var(--line)}
p{margin:12px 0;max-width:78ch}
.subtitle{color:var(--muted);margin:0;max-width:none}
.verdict{font-size:19px;line-height:1.5;margin:22px 0 20px;padding:2px 0 2px 18px;border-left:4px solid var(--muted);
max-width:none}
.verdict.good{border-color:var(--good)}.verdict.warn{border-color:var(--warn)}.verdict.bad{border-color:var(--bad)}
.tiles{display:flex;flex-wrap:wrap;gap:1px;margin:24px 0 0;background:var(--line);border:1px solid var(--line)}
.tile{flex:1 1 auto;min-width:126px;background:var(--paper);padding:12px 14px 11px}
.tile .label{font-size:13px;color:var(--muted)}
.tile .value{font-size:23px;line-height:1.3;font-weight:600;letter-spacing:-.01em;font-variant-numeric:tabular-nums}
.tile .value{white-space:nowrap}.tile .detail{width:0;min-width:100%;font-size:13px;line-height:1.4;color:var(--muted)}
.tile.good .value{color:var(--good)}.tile.warn .value{color:var(--warn)}.tile.bad .value{color:var(--bad)}
nav{margin-top:18px;font-size:14px}
nav a{color:var(--link);text-decoration:none;margin-right:15px;white-space:nowrap;display:inline-block;padding:3px 0}
nav a:hover{text-decoration:underline}
a{color:var(--link)}
.notice{border-left:3px solid var(--muted);background:var(--wash);padding:9px 14px;max-width:none}
.notice.good{border-color:var(--good)}.notice.warn{border-color:var(--warn)}.notice.bad{border-color:var(--bad)}
.scroll{overflow-x:auto;margin:16px 0}
table{border-collapse:collapse;font-size:14px;line-height:1.45;font-variant-numeric:tabular-nums;min-width:60%}
th,td{text-align:left;vertical-align:top;padding:5px 18px 5px 0;border-bottom:1px solid var(--line)}
th{font-weight:600;color:var(--muted);border-bottom-color:var(--muted);vertical-align:bottom}
td:last-child,th:last-child{padding-right:4px}
th.n,td.n{text-align:right;white-space:nowrap}
tr.total td{font-weight:600;border-bottom:none;border-top:1px solid var(--muted)}
.caption{font-size:14px;line-height:1.5;color:var(--muted);margin:6px 0 22px}
code,pre{font-family:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:.9em}
code{overflow-wrap:anywhere}td code{white-space:nowrap;overflow-wrap:normal}
pre{background:var(--wash);padding:11px 14px;margin:8px 0;overflow-x:auto;font-size:13px;line-height:1.5}
pre.text{white-space:pre-wrap;overflow-wrap:anywhere}
.faint{color:var(--muted)}
.swatch{display:inline-block;width:11px;height:11px;margin-right:8px;vertical-align:-1px}
figure{margin:20px 0 6px}
figure .scroll{margin:0}figure svg{display:block;width:100%;height:auto}
figcaption{font-size:14px;line-height:1.5;color:var(--muted);margin:8px 0 22px;max-width:88ch}
.comparison{margin:20px 0;border-top:1px solid var(--line);padding-top:10px}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:14px}
.pair h4{font-size:13px;font-weight:600;color:var(--muted);margin:4px 0}
footer{color:var(--muted);font-size:13px;margin:56px auto 40px}
footer p{border-top:1px solid var(--line);padding-top:12px;max-width:none}
@media screen and (max-width:760px){main,header,nav,footer{padding-left:16px;padding-right:16px}
table{width:max-content;max-width:900px}header{padding-top:24px}h1{font-size:25px}.verdict{font-size:17px}
.tile{flex-basis:40%}.pair{grid-template-columns:1fr}figure .scroll svg{width:720px;max-width:none}h2{margin-top:40px}}
@page{margin:14mm}
@media print{body{font-size:10pt;background:#fff}main,header,nav,footer{max-width:none;padding:0}
nav{display:none}header{padding-top:0}
h2{margin-top:22pt;break-after:avoid}figure,.tiles,tr,.comparison,.notice{break-inside:avoid}.scroll{overflow:visible}table{font-size:8.5pt;min-width:0}
td,th{padding-right:10pt}pre{white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid var(--line)}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""


def stylesheet() -> str:
    """Light by default (and always on paper), dark where the reader's scheme is dark."""
    dark = f"@media screen and (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}"
    return f":root{{color-scheme:light dark;{_variables(LIGHT)}}}{dark}{_RULES}"

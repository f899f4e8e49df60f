"""``headway goodput RUN``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from headway.base.errors import EXIT_FINDINGS, EXIT_OK
from headway.cli.options import Json, RunArgument

MOST_ATTEMPTS, MOST_PHASES = 20, 8
UNKNOWN = "unknown"


def goodput(
    run: RunArgument,
    /,
    *,
    out: Annotated[
        Path | None,
        Parameter(
            metavar="DIR", help="Also write the waterfall as PNG and as an HTML page, and the facts as JSON. Default: none."
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Account for every second of a run, and for every device that it asked for.

    Time by category, summing to the wall clock to the nanosecond; committed work beside attempted work; device time lost to
    missing devices and slow steps; goodput by our definition and by those of others, each with its formula; MFU and HFU
    under each convention; every attempt; the interval between checkpoints, why it is in force, and what another would cost.
    Reads records only, at any time. The exit code is 1 when a utilisation above 100 % shows that a figure is wrong.
    """
    from headway.cli.output import print_json, say
    from headway.monitor.account import read_account
    from headway.rundir.layout import RunDirectory
    from headway.rundir.metrics import encode_row

    account = read_account(RunDirectory.open(run))
    facts = encode_row({"kind": "goodput", "schema_version": 1, "run": str(run), **account.to_json()})
    written = write(account, facts, out) if out is not None else []
    if json:
        print_json(facts | {"files": [str(path) for path in written]})
    else:
        for line in lines(account):
            say(line)
        for path in written:
            say(str(path))
    return EXIT_FINDINGS if account.utilisation is not None and account.utilisation.alarm else EXIT_OK


def write(account: Any, facts: dict[str, Any], out: Path) -> list[Path]:
    """The waterfall, twice, and the facts; no plot where no time has passed."""
    from html import escape

    from headway.base.files import make_directory, write_atomic, write_json
    from headway.base.terminal import printable_text
    from headway.report import plots
    from headway.report.stylesheet import stylesheet
    from headway.report.waterfall import png, waterfall_figure

    make_directory(out, "directory for the account")
    write_json(out / "goodput.json", facts)
    if not account.ledger.total_ns:
        return [out / "goodput.json"]

    def draw() -> Any:
        return waterfall_figure(account.ledger.total_ns, account.waterfall, account.capacity)

    write_atomic(out / "goodput.png", png(draw()))
    text = escape(printable_text("\n".join(lines(account))))
    title = escape(printable_text(account.name))
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}: goodput</title><style>{stylesheet()}</style>'
        f"<main><h1>{title}: where every second went</h1><figure>{plots.inline_svg(plots.draw(draw), 'goodput')}</figure>"
        f"<pre>{text}</pre></main></html>"
    )
    write_atomic(out / "goodput.html", page.encode())
    return [out / name for name in ("goodput.png", "goodput.html", "goodput.json")]


def lines(account: Any) -> Iterator[str]:
    """The account for people."""
    if not account.ledger.total_ns:
        yield f"{account.name}: no time is recorded yet"
        return
    yield from time_lines(account)
    yield from progress_lines(account.ledger)
    yield from capacity_lines(account)
    yield from view_lines(account)
    yield from utilisation_lines(account.utilisation)
    yield from attempt_lines(account.attempts)
    yield from interval_lines(account.interval)
    yield from (f"note: {flag}" for flag in account.ledger.flags)


def time_lines(account: Any) -> Iterator[str]:
    from headway.base.units import format_seconds
    from headway.cli.output import table
    from headway.monitor.meanings import MEANINGS

    ledger = account.ledger
    yield f"{account.name}: {format_seconds(ledger.total_ns / 1e9)} since its first record"
    yield ""
    rows = [
        [name.replace("_", " "), format_seconds(ns / 1e9), f"{ns / ledger.total_ns:.2%}", f"{ns:,}", MEANINGS[name]]
        for name, ns in ledger.categories.items()
    ]
    rows.append(["sum", format_seconds(ledger.total_ns / 1e9), "100.00%", f"{sum(ledger.categories.values()):,}", ""])
    yield from table(["time", "", "share", "nanoseconds", "what it is"], rows, left=(0, 4))


def progress_lines(ledger: Any) -> Iterator[str]:
    from headway.base.units import format_count
    from headway.cli.output import table

    committed, attempted = ledger.committed, ledger.attempted
    yield ""
    rows = [
        ["committed: in the newest checkpoint", f"{committed.steps:,}", format_count(committed.tokens)],
        ["attempted: every update executed", f"{attempted.steps:,}", format_count(attempted.tokens)],
    ]
    yield from table(["work", "steps", "tokens"], rows)
    without = "; replayed ones do not count" if committed.tokens else ""
    yield f"{speed_words(ledger)}, over all time{without}"


def speed_words(ledger: Any) -> str:
    """What is committed; before the first save, what would be."""
    from headway.base.units import format_count

    if ledger.committed.tokens or not ledger.attempted.tokens:
        return f"{format_count(ledger.committed_tokens_per_second)} committed tokens per second"
    rate = format_count(ledger.attempted.tokens / (ledger.total_ns / 1e9))
    return f"none committed yet, the first save does that; {rate} attempted tokens per second"


def capacity_lines(account: Any) -> Iterator[str]:
    from headway.base.units import format_seconds
    from headway.cli.output import table
    from headway.monitor.capacity import SLOW, category_words, device_time

    capacity = account.capacity
    yield ""
    rows = [
        [category_words(name), device_time(amount), f"{amount / capacity.total:.2%}", f"{amount:,}"]
        for name, amount in capacity.categories.items()
    ]
    rows.append(["sum", device_time(capacity.total), "100.00%", f"{capacity.total:,}"])
    yield from table(["device time", "", "share", "device nanoseconds"], rows)
    yield (
        f"missing: devices asked for that were not there; slow: what steps of over {SLOW:g} times the good time took beyond it; "
        "good: where the quickest quarter of a stage, batch and layout ends"
    )
    for phase in capacity.phases[:MOST_PHASES]:
        where = f"segment {phase.segment}" + (f", steps {phase.first_step:,} to {phase.last_step:,}" if phase.first_step else "")
        what = (
            f"{phase.devices:,} of {phase.asked:,} devices"
            if phase.what == "missing"
            else f"steps took {phase.times:.2f} times as long as good ones"
        )
        yield f"{phase.what:<8} {where}: {what} for {format_seconds(phase.ns / 1e9)}"
    if len(capacity.phases) > MOST_PHASES:
        yield f"and {len(capacity.phases) - MOST_PHASES} more phases: --json has them"


def view_lines(account: Any) -> Iterator[str]:
    yield ""
    told: set[str] = set()
    for view in account.views:
        yield f"{UNKNOWN if view.value is None else f'{view.value:.2%}':>8}  {view.name} = {view.formula}"
        yield f"{'':>8}  {view.otherwise}"
        if view.source not in told:
            yield f"{'':>8}  source: {view.source}"
        told.add(view.source)


def utilisation_lines(used: Any) -> Iterator[str]:
    from headway.base.units import format_count
    from headway.cli.output import table

    yield ""
    if used is None or used.peak.flops is None:
        words = "the spec cannot be read" if used is None else f"{used.peak.device}: {used.peak.words}"
        yield f"MFU and HFU are unknown: {words}; another device's peak is never borrowed"
        return
    shares = [
        [
            one.convention.value,
            *(UNKNOWN if share is None else f"{share:.2%}" for share in (one.mfu, one.hfu, one.mfu_end_to_end)),
            one.formula,
        ]
        for one in used.shares
    ]
    yield from table(["FLOPs counted", "MFU", "HFU", "MFU end-to-end", "FLOPs per token"], shares, left=(0, 4))
    yield f"of {format_count(used.peak.flops)}FLOP/s a device: {used.peak.words}"
    yield "MFU, HFU: over kept steps and the devices there; end-to-end: committed tokens over all time and all devices asked for"
    if used.alarm:
        yield f"ALARM: {used.alarm}"


def attempt_lines(attempts: Any) -> Iterator[str]:
    from headway.base.units import format_seconds
    from headway.cli.output import table

    yield ""
    rows = [
        [
            str(one.segment),
            str(one.devices),
            f"{one.first_step:,} to {one.last_step:,}" if one.first_step is not None else "none",
            *(format_seconds(ns / 1e9) for ns in (one.ns, one.productive_ns, one.lost_ns, one.overhead_ns)),
            one.end[:60],
        ]
        for one in attempts[-MOST_ATTEMPTS:]
    ]
    titles = ["segment", "devices", "steps", "time", "productive", "lost", "overhead", "end"]
    yield from table(titles, rows, left=(0, 2, 7))
    if len(attempts) > MOST_ATTEMPTS:
        yield f"the newest of {len(attempts)} attempts: --json has all"


def interval_lines(report: Any) -> Iterator[str]:
    """Which interval is in force, why, what another would cost."""
    from headway.base.units import format_seconds
    from headway.cli.output import table

    if report is None:
        return
    yield ""
    yield f"interval    {interval_words(report)}"
    low, high = (format_seconds(seconds) for seconds in report.between_range)
    seen = f"{report.interruptions} seen" if report.interruptions else "none seen, assumed or as the deployment states"
    between = format_seconds(report.between_seconds)
    yield f"            an interruption every {between} of training ({low} to {high}, 80 %); {seen}"
    if report.costs:
        yield ""
        rows = [
            [format_seconds(one.interval_seconds), *(f"{share:.3%}" for share in (one.saves, one.replay, one.total)), one.what]
            for one in report.costs
        ]
        yield from table(["a save every", "saves", "replay", "lost", ""], rows, left=(4,))
    yield ""
    places = [
        [
            place.name,
            UNKNOWN if place.every_seconds is None else format_seconds(place.every_seconds),
            str(place.restores),
            place.cost,
            place.survives,
        ]
        for place in report.places
    ]
    yield from table(["checkpoints in", "every", "restores", "cost", "survives"], places, left=(0, 3, 4))


def interval_words(report: Any) -> str:
    """On one line: for ``headway status`` too."""
    from headway.base.units import format_seconds

    if report.in_force_seconds is None:
        return f"not chosen yet: {report.reason}"
    chosen = f", changed {report.changes - 1} times" if report.adaptive and report.changes > 1 else ""
    best = ""
    if not report.adaptive and report.best_seconds is not None and report.costs:
        mine, least = (next((one.total for one in report.costs if one.what == what), None) for what in ("in force", "best"))
        if mine is not None and least is not None:
            loses = f"it loses {mine:.2%} of the training time, {format_seconds(report.best_seconds)} would lose {least:.2%}"
            rate = "as seen" if report.interruptions else "assumed or as the deployment states, none seen yet"
            best = f"; {loses}, with an interruption every {format_seconds(report.between_seconds)} ({rate})"
    return f"{format_seconds(report.in_force_seconds)}{chosen}: {report.reason}{best}"

"""``headway mup check | sweep | transfer``: hyperparameters that are tuned on a small model and carried to a wide one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter

from headway.base.errors import EXIT_FINDINGS, EXIT_OK, ConfigError
from headway.cli.options import DataOption, Json, Overrides, RecipeArgument

N = TypeVar("N", int, float)

WidthsOption = Annotated[
    str | None,
    Parameter(
        metavar="N,N", help="Widths, multiples of what keeps heads whole. Default: the recipe's own, twice and four times it."
    ),
]
SHOWN_LINES = 6
"""Of the coordinate check, per quantity: the steepest."""


# --- check --------------------------------------------------------------------------------------------------------------


def check(
    recipe: RecipeArgument,
    /,
    *,
    widths: WidthsOption = None,
    steps: Annotated[int, Parameter(metavar="N", help="Optimizer steps to take; slopes are judged from step 2 on.")] = 4,
    seeds: Annotated[int, Parameter(metavar="N", help="Seeds to average over.")] = 4,
    out: Annotated[
        Path | None,
        Parameter(metavar="DIR", help="Write coordinates.json and coordinates.png there. Default: nothing is written."),
    ] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> int:
    """Check that activations, gradients and updates stay of one order as the model grows wider (the coordinate check).

    A few steps on one batch at several widths, under muP as the recipe's [model.mup] states it and, as a control, in the
    standard parametrisation, which must fail. Needs no data. Exit code 1 where a slope leaves the pass band, or where the
    control passes too and nothing was seen.
    """
    from headway.cli.output import print_json
    from headway.experiment.coordinates import judge, read_measurements

    proxy = _proxy(recipe, overrides)
    found = judge(read_measurements(_measure(proxy, _widths(proxy, widths), steps, seeds, out)))
    facts = found.to_json() | {"recipe_digest": proxy.loaded.digest, "files": _write_check(found, out)}
    if json:
        print_json(facts)
    else:
        _say_all(check_lines(found, facts["files"]))
    return EXIT_OK if found.passed else EXIT_FINDINGS


def _proxy(recipe: str, overrides: Sequence[str] | None) -> Any:
    from headway.cli.describe import describe
    from headway.cli.engine import require_engine
    from headway.experiment.grid import Proxy

    proxy = Proxy.of(describe(recipe, overrides, None).loaded)
    require_engine()
    return proxy


def _widths(proxy: Any, asked: str | None) -> list[int]:
    """Two or more, each with whole heads."""
    from headway.experiment.grid import refuse_widths

    own = proxy.base.width
    widths = sorted(set(numbers("--widths", asked, int) or [own, 2 * own, 4 * own]))
    if len(widths) < 2:
        raise ConfigError("one width", "a slope over width needs two or more", "such as --widths 64,128,256", "--widths")
    refuse_widths(proxy, widths, "--widths")
    return widths


def _measure(proxy: Any, widths: Sequence[int], steps: int, seeds: int, out: Path | None) -> Any:
    """The engine's answer; Specs and request lie in ``out``, or for the time being in a temporary directory."""
    from tempfile import TemporaryDirectory

    from headway.base.files import make_directory

    if not 2 <= steps <= 1000:
        raise ConfigError(
            f"{steps} steps", "slopes are judged from step 2 on, and 1,000 steps are enough", "such as 4", "--steps"
        )
    if not 1 <= seeds <= 100:
        raise ConfigError(f"{seeds} seeds", "a check has 1 to 100 seeds", "such as --seeds 2", "--seeds")
    if out is not None:
        return _ask_check(proxy, widths, steps, seeds, make_directory(out, "directory for the check").resolve())
    with TemporaryDirectory(prefix="headway-mup-") as directory:
        return _ask_check(proxy, widths, steps, seeds, Path(directory))


def _ask_check(proxy: Any, widths: Sequence[int], steps: int, seeds: int, root: Path) -> Any:
    from headway.base.files import make_directory, write_json
    from headway.cli import engine
    from headway.experiment.grid import PARAMETRIZATIONS, crossed
    from headway.recipe.resolve import resolve

    specs = make_directory(root / "specs", "directory for the specs")
    arms = []
    for name in PARAMETRIZATIONS:
        settings = crossed(proxy.base, parametrization=[name], width=widths, seed=[proxy.base.seed + k for k in range(seeds)])
        paths = [specs / f"{setting.id}.json" for setting in settings]
        for setting, path in zip(settings, paths, strict=True):
            write_json(path, resolve(proxy.recipe(setting), None).to_json())
        arms.append({"parametrization": name, "specs": list(map(str, paths))})
    request = {"kind": "mup_check_request", "schema_version": 1, "arms": arms, "steps": steps}
    write_json(root / "request.json", request)
    return engine.ask_engine("mup-check", [str(root / "request.json")])


def _write_check(found: Any, out: Path | None) -> list[str]:
    from headway.base.files import write_json

    if out is None:
        return []
    from headway.report.mup_plots import coordinates_figure, save_png

    write_json(out / "coordinates.json", found.to_json())
    save_png(lambda: coordinates_figure(found), out / "coordinates.png")
    return [str(out / "coordinates.json"), str(out / "coordinates.png")]


def check_lines(found: Any, files: Sequence[str]) -> Iterator[str]:
    """Per quantity the steepest modules of muP, worst step of each, and the control beside it; then the verdict."""
    from headway.cli.output import table

    worst = {arm: _worst_by_module(lines) for arm, lines in found.lines.items()}
    rows, left_out = [], 0
    for quantity in dict.fromkeys(line.quantity for line in found.lines["mup"]):
        mine = sorted((key for key in worst["mup"] if key[0] == quantity), key=lambda key: -_steepness(worst["mup"][key]))
        left_out += max(0, len(mine) - SHOWN_LINES)
        for key in mine[:SHOWN_LINES]:
            rows.append([quantity.replace("_", " "), key[1], _slope(worst["mup"][key]), _slope(worst["standard"].get(key))])
    yield from table(["quantity", "module", "muP: steepest slope", "standard"], rows, left=(0, 1))
    if left_out:
        yield f"{left_out} modules with flatter slopes are not shown"
    yield ""
    yield f"pass band: slopes of log2 value over log2 width within {found.band:g}, from step 2 on; * outside"
    yield f"verdict: {found.verdict}: {found.reason}" if found.reason not in found.verdict else f"verdict: {found.verdict}"
    yield from (f"written: {name}" for name in files)


def _worst_by_module(lines: Sequence[Any]) -> dict[tuple[str, str], Any]:
    found: dict[tuple[str, str], Any] = {}
    for line in lines:
        key = (line.quantity, line.module)
        if line.judged and (key not in found or _steepness(line) > _steepness(found[key])):
            found[key] = line
    return found


def _steepness(line: Any) -> float:
    return float("inf") if line.slope is None else abs(line.slope)


def _slope(line: Any) -> str:
    if line is None:
        return "not measured"
    return f"{'none' if line.slope is None else f'{line.slope:+.3f}'} {' ' if line.passes else '*'}"


# --- sweep --------------------------------------------------------------------------------------------------------------


def sweep(
    recipe: RecipeArgument,
    /,
    *,
    out: Annotated[Path, Parameter(metavar="DIR", help="Directory of the sweep: plan, trials, results, plots.")],
    widths: WidthsOption = None,
    hold_out: Annotated[
        int | None,
        Parameter(metavar="N", help="A width that no fit sees: what is predicted for it is compared with its own optimum."),
    ] = None,
    rates: Annotated[
        str | None, Parameter(metavar="R,R", help="Peak rates. Default: seven around the recipe's, a factor of two apart.")
    ] = None,
    warmups: Annotated[
        str | None,
        Parameter(
            metavar="T,T",
            help="Warm-ups of the first stage, tokens. Default: five around the recipe's; one value: not swept.",
        ),
    ] = None,
    init_stds: Annotated[
        str | None, Parameter(metavar="S,S", help="Init scales. Default: five around the recipe's; one value: not swept.")
    ] = None,
    seeds: Annotated[int, Parameter(metavar="N", help="Seeds at the best rate and the rates beside it.")] = 1,
    standard: Annotated[
        bool, Parameter(help="Also sweep the rates in the standard parametrisation, to compare; --no-standard leaves it out.")
    ] = True,
    data: DataOption = None,
    overrides: Overrides = None,
    json: Json = False,
) -> int:
    """Train a recipe at several widths, find the best rate, warm-up and init scale of each, and say whether they stay put.

    One at a time: rates at every width; then, at each width's best rate, warm-ups and init scales; then more seeds around the
    best rate. Trials that have ended are kept: the same command goes on after a stop, and runs only what is new when values
    are added. Exit code 0 where muP's best rate transfers, 1 where it does not or that is undecided.
    """
    from headway.cli import engine
    from headway.cli.output import print_json, say
    from headway.experiment.sweep import Runner, run_sweep, settings_for

    proxy = _proxy(recipe, overrides)
    values = {
        "rates": numbers("--rates", rates, float),
        "warmups": numbers("--warmups", warmups, _tokens),
        "init_stds": numbers("--init-stds", init_stds, float),
    }
    settings = settings_for(
        proxy, widths=numbers("--widths", widths, int), hold_out=hold_out, values=values, seeds=seeds, standard=standard
    )

    def tell(phase: str, trials: int, ended: int) -> None:
        if not json:
            say(f"- phase {phase}: {trials} trials" + (f", {ended} of them ended before" if ended else ""))

    manifest, directory = _built(proxy, data, quiet=json)
    outcome = run_sweep(Runner(proxy, manifest, out, directory, engine.ask_engine, tell), settings)
    files = _write_plots(outcome, out)
    if json:
        print_json({"kind": "mup_sweep_outcome", "schema_version": 1, "directory": str(out), **outcome.to_json(), "plots": files})
    else:
        _say_all(sweep_lines(outcome, out, files))
    return _exit_code(outcome)


def _tokens(text: str) -> int:
    from headway.base.units import parse_count

    return parse_count(text)


def _built(proxy: Any, data: Path | None, *, quiet: bool) -> tuple[Any, Path]:
    """The data, built as ``headway data build`` does, or verified where it lies."""
    from headway.cli.data import tell
    from headway.data.build import build_data

    directory = data or Path("data") / proxy.loaded.recipe.name
    return build_data(proxy.loaded, directory, progress=None if quiet else tell), directory.resolve()


def _write_plots(outcome: Any, out: Path) -> list[str]:
    from headway.report.mup_plots import save_png, sweep_figures

    files = []
    for name, draw in sweep_figures(outcome).items():
        save_png(draw, out / f"{name}.png")
        files.append(str(out / f"{name}.png"))
    return files


def _exit_code(outcome: Any) -> int:
    from headway.experiment.transfer import TRANSFERS

    return EXIT_OK if outcome.rate.verdict[0] == TRANSFERS else EXIT_FINDINGS


def sweep_lines(outcome: Any, out: Path, files: Sequence[str]) -> Iterator[str]:
    for finding in outcome.findings:
        yield from finding_lines(finding)
    yield ""
    yield f"{outcome.trials} trials, {outcome.diverged} diverged"
    yield from (f"written: {name}" for name in (str(out / "sweep.json"), *files))
    verdict, _ = outcome.rate.verdict
    if verdict == "transfers":
        yield f"carry it over with: headway mup transfer {out} TARGET_RECIPE"


def finding_lines(finding: Any) -> Iterator[str]:
    """One hyperparameter over the widths: optima, drift, the held-out width, the verdict."""
    from headway.cli.output import table

    verdict, reason = finding.verdict
    yield ""
    yield f"{ARM_WORDS[finding.parametrization]}: {WORDS[finding.hyperparameter]}"
    found = [(str(width), optimum) for width, optimum in finding.optima.items()]
    if finding.held_out_curve is not None:
        found.append((f"{finding.held_out_curve[0]}, held out", finding.held_out_optimum))
    rows = [[width, *_optimum_cells(optimum)] for width, optimum in found]
    yield from table(["width", "best", "from", "to", "loss there", "diverged", "remarks"], rows, left=(0, 6))
    drift = finding.drift
    if drift.slope is not None:
        ends = f"{drift.slope_low:+.2f} to {drift.slope_high:+.2f}"
        yield f"moves by a factor of {drift.moved:.3g} in all; {drift.slope:+.2f} octaves per octave of width ({ends})"
    for comparison, words in ((finding.held_out, "carried over unchanged"), (finding.by_line, "following the line")):
        if comparison is not None:
            yield comparison_line(comparison, words)
    yield f"verdict: {verdict}: {reason}"


def _optimum_cells(optimum: Any) -> list[str]:
    ends = ["open" if end is None else f"{end:.3g}" for end in (optimum.low, optimum.high)]
    best = "none" if optimum.value is None else f"{optimum.value:.3g}"
    loss = "" if optimum.loss is None else f"{optimum.loss:.4f}"
    remark = optimum.reason if optimum.bracketed else f"not bracketed: {optimum.reason or optimum.state}"
    return [best, *ends, loss, f"{optimum.diverged} of {optimum.trials}", remark]


def comparison_line(comparison: Any, words: str) -> str:
    lost = "what that loses cannot be told" if comparison.lost is None else f"{comparison.lost:.4f} nats lost"
    ratio = "nothing found there to compare with" if comparison.ratio is None else f"{comparison.ratio:.3g} x the one found there"
    return f"width {comparison.width}, which no fit saw, {words}: {comparison.predicted:.3g}, {ratio}; {lost}"


ARM_WORDS = {"mup": "muP", "standard": "standard parametrisation"}
WORDS = {"rate": "peak rate", "warmup_tokens": "warm-up, tokens", "init_std": "init scale"}


# --- transfer -----------------------------------------------------------------------------------------------------------


def transfer(
    sweep_directory: Annotated[Path, Parameter(help="The directory that headway mup sweep wrote.")],
    recipe: Annotated[str, Parameter(help="The recipe to carry the hyperparameters to: a file, or the name of a preset.")],
    /,
    *,
    factor: Annotated[float, Parameter(metavar="F", help="By how much the best rate may move over the widths swept.")] = 2.0,
    despite: Annotated[
        str | None, Parameter(metavar="REASON", help="Carry it over whatever the verdict; the reason is recorded.")
    ] = None,
    out: Annotated[
        Path | None, Parameter(metavar="FILE", help="The record. Default: transfer-NAME.json in the sweep's directory.")
    ] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> int:
    """Carry the rate, warm-up and init scale that a sweep found to another recipe, with a record of the evidence.

    Prints what to set. Refused with exit code 1 where the best rate moves by more than the factor, or where the sweep leaves
    that undecided; the record is written all the same.
    """
    from headway.base.files import make_directory, write_json
    from headway.cli.output import print_json
    from headway.cli.run import author
    from headway.experiment.sweep import read_sweep
    from headway.experiment.target import Asked
    from headway.experiment.target import transfer as carry

    swept, outcome = read_sweep(sweep_directory, factor)
    asked = Asked(
        sweep_directory=str(sweep_directory), target=recipe, overrides=tuple(overrides or ()), despite=despite, author=author()
    )
    record = carry(swept, outcome, asked)
    path = out or sweep_directory / f"transfer-{Path(record.target_recipe).stem}.json"
    if path.is_dir():
        raise ConfigError(f"{path} is a directory", "the record is one file", "name a file", "--out")
    make_directory(path.parent, "directory for the record")
    write_json(path, record.to_json())
    if json:
        print_json(record.to_json() | {"file": str(path)})
    else:
        _say_all(transfer_lines(record, path))
    return EXIT_FINDINGS if record.refused else EXIT_OK


def transfer_lines(record: Any, path: Path) -> Iterator[str]:
    from headway.cli.output import table

    rows = [
        [
            value.path,
            f"{value.value:.4g}",
            *("" if end is None else f"{end:.3g}" for end in (value.low, value.high)),
            value.source,
        ]
        for value in record.values
    ]
    yield from table(["key", "value", "from", "to", "source"], rows, left=(0, 4))
    yield ""
    if record.not_covered:
        yield "not covered by the sweep, which speaks for the width alone:"
        yield from (f"  {line}" for line in record.not_covered)
        yield ""
    yield f"verdict: {record.verdict}: {record.reason}"
    if record.refused:
        yield 'refused: nothing is set. Widen the sweep, or give a reason with --despite "REASON"'
    else:
        if record.despite is not None:
            yield f"set despite that: {record.despite}"
        yield "run the target with:"
        yield f"  headway run {record.target_recipe} {' '.join(f'--set {override}' for override in record.overrides)}"
    yield f"written: {path}"


# --- reading options ----------------------------------------------------------------------------------------------------


def numbers(option: str, text: str | None, kind: Callable[[str], N]) -> list[N] | None:
    """``"64,128"`` -> [64, 128]; None stays None. All must be positive."""
    if text is None:
        return None
    return [_number(option, part.strip(), kind) for part in text.split(",")]


def _number(option: str, text: str, kind: Callable[[str], N]) -> N:
    try:
        value = kind(text)
    except (ValueError, OverflowError, ConfigError):
        value = None
    if value is None or not 0 < value < 2**63:
        what = "whole number" if kind is int else "number of tokens" if kind is _tokens else "number"
        raise ConfigError(
            f"{text!r} is not a positive {what}", "values are separated by commas", f"such as {EXAMPLES[option]}", option
        )
    return value


EXAMPLES = {
    "--widths": "--widths 64,128,256",
    "--rates": "--rates 5e-4,1e-3,2e-3",
    "--warmups": "--warmups 16k,32k,64k",
    "--init-stds": "--init-stds 0.01,0.02,0.04",
}


def _say_all(lines: Iterator[str]) -> None:
    from headway.cli.output import say

    for line in lines:
        say(line)

"""``headway mup check | sweep | transfer``: hyperparameters that are tuned on a small model and carried to a wide one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from headway.base.errors import EXIT_FINDINGS, EXIT_OK, ConfigError
from headway.cli.options import DataOption, Json, Overrides, RecipeArgument

if TYPE_CHECKING:
    from headway.data.manifest import DataManifest
    from headway.experiment.coordinates import Arm, Asked, Check, Line
    from headway.experiment.grid import Proxy, Settings
    from headway.experiment.optimum import Optimum
    from headway.experiment.outcome import Finding, Outcome
    from headway.experiment.records import TrialRecord
    from headway.experiment.target import Transfer
    from headway.experiment.transfer import Comparison

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
    from headway.experiment.coordinates import Asked, default_widths, judge

    proxy = _proxy(recipe, overrides)
    wanted = tuple(sorted(set(numbers("--widths", widths, int) or default_widths(proxy))))
    found = judge(_measure(proxy, Asked(widths=wanted, steps=steps, seeds=seeds), out))
    facts = found.to_json() | {"recipe_digest": proxy.loaded.digest, "files": _write_check(found, out)}
    if json:
        print_json(facts)
    else:
        _say_all(check_lines(found, facts["files"]))
    return EXIT_OK if found.passed else EXIT_FINDINGS


def _proxy(recipe: str, overrides: Sequence[str] | None) -> Proxy:
    from headway.cli.describe import describe
    from headway.cli.engine import require_engine
    from headway.experiment.grid import Proxy

    proxy = Proxy.of(describe(recipe, overrides, None).loaded)
    require_engine()
    return proxy


def _measure(proxy: Proxy, asked: Asked, out: Path | None) -> dict[str, Arm]:
    """The engine's answer; Specs and request lie in ``out``, or for the time being in a temporary directory."""
    from tempfile import TemporaryDirectory

    from headway.cli.engine import ask_engine
    from headway.experiment.coordinates import measure

    if out is not None:
        return measure(proxy, asked, out.resolve(), ask_engine)
    with TemporaryDirectory(prefix="headway-mup-") as directory:
        return measure(proxy, asked, Path(directory), ask_engine)


def _write_check(found: Check, out: Path | None) -> list[str]:
    from headway.base.files import write_json

    if out is None:
        return []
    from headway.report.mup_plots import coordinates_figure, save_png

    write_json(out / "coordinates.json", found.to_json())
    save_png(lambda: coordinates_figure(found), out / "coordinates.png")
    return [str(out / "coordinates.json"), str(out / "coordinates.png")]


def check_lines(found: Check, files: Sequence[str]) -> Iterator[str]:
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


def _worst_by_module(lines: Sequence[Line]) -> dict[tuple[str, str], Line]:
    found: dict[tuple[str, str], Line] = {}
    for line in lines:
        key = (line.quantity, line.module)
        if line.judged and (key not in found or _steepness(line) > _steepness(found[key])):
            found[key] = line
    return found


def _steepness(line: Line) -> float:
    return float("inf") if line.slope is None else abs(line.slope)


def _slope(line: Line | None) -> str:
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
            help="Warm-ups of the first stage, tokens. Default: five around the recipe's; one value: every trial has it.",
        ),
    ] = None,
    init_stds: Annotated[
        str | None,
        Parameter(metavar="S,S", help="Init scales. Default: five around the recipe's; one value: every trial has it."),
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
    from headway.cli.output import print_json, say, say_aside
    from headway.experiment.asking import Tell
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

    manifest, directory = _built(proxy, data, quiet=json)
    course = say_aside if json else say
    course(expected_line(settings))
    tell = Tell(phase=lambda *facts: course(phase_line(*facts)), trial=lambda *facts: course(trial_line(*facts)))
    outcome = run_sweep(Runner(proxy, manifest, out, directory, engine.ask_engine, tell), settings)
    files = _write_plots(outcome, out)
    if json:
        print_json({"kind": "mup_sweep_outcome", "schema_version": 1, "directory": str(out), **outcome.to_json(), "plots": files})
    else:
        _say_all(sweep_lines(outcome, out, files))
    return _exit_code(outcome)


def expected_line(settings: Settings) -> str:
    from headway.experiment.sweep import most_trials

    counts = {phase: count for phase, count in most_trials(settings).items() if count}
    return f"- up to {sum(counts.values())} trials: {', '.join(f'{count} of {phase}' for phase, count in counts.items())}"


def phase_line(name: str, trials: int, ended: int) -> str:
    return f"- phase {name}: {trials} trials" + (f", {ended} of them ended before" if ended else "")


def trial_line(record: TrialRecord, ended: int, trials: int) -> str:
    """``ended`` of the phase's ``trials``."""
    from headway.base.units import format_seconds

    came_out = "diverged" if record.diverged or record.loss is None else f"held-out loss {record.loss:.4f}"
    return f"  {ended} of {trials}: {record.id}, {came_out}, {format_seconds(record.seconds)}"


def _tokens(text: str) -> int:
    from headway.base.units import parse_count

    return parse_count(text)


def _built(proxy: Proxy, data: str | None, *, quiet: bool) -> tuple[DataManifest, Path]:
    """The data, built as ``headway data build`` does, or verified where it lies."""
    from headway.cli.data import tell
    from headway.data.build import build_data

    directory = Path(data or Path("data") / proxy.loaded.recipe.name)
    if data is not None and "://" in data:
        raise ConfigError(f"--data {data}", "trials read data of this machine", "copy it to a directory", "--data")
    return build_data(proxy.loaded, directory, progress=None if quiet else tell), directory.resolve()


def _write_plots(outcome: Outcome, out: Path) -> list[str]:
    from headway.report.mup_plots import save_png, sweep_figures

    files = []
    for name, draw in sweep_figures(outcome).items():
        save_png(draw, out / f"{name}.png")
        files.append(str(out / f"{name}.png"))
    return files


def _exit_code(outcome: Outcome) -> int:
    from headway.experiment.transfer import TRANSFERS

    return EXIT_OK if outcome.rate.verdict[0] == TRANSFERS else EXIT_FINDINGS


def sweep_lines(outcome: Outcome, out: Path, files: Sequence[str]) -> Iterator[str]:
    from headway.experiment.transfer import TRANSFERS

    for finding in outcome.findings:
        yield from finding_lines(finding)
    yield ""
    yield f"{outcome.trials} trials, {outcome.diverged} diverged"
    yield from (f"written: {name}" for name in (str(out / "sweep.json"), *files))
    verdict, _ = outcome.rate.verdict
    if verdict == TRANSFERS:
        yield f"carry it over with: headway mup transfer {out} TARGET_RECIPE"


def finding_lines(finding: Finding) -> Iterator[str]:
    """One hyperparameter over the widths: optima, drift, the held-out width, the verdict."""
    from headway.cli.output import table
    from headway.experiment.grid import ARM_WORDS
    from headway.experiment.outcome import WORDS

    verdict, reason = finding.verdict
    yield ""
    yield f"{ARM_WORDS[finding.parametrization]}: {WORDS[finding.hyperparameter]}"
    found = [(str(width), optimum) for width, optimum in finding.optima.items()]
    if finding.held_out_curve is not None and finding.held_out_optimum is not None:
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


def _optimum_cells(optimum: Optimum) -> list[str]:
    ends = ["open" if end is None else f"{end:.3g}" for end in (optimum.low, optimum.high)]
    best = "none" if optimum.value is None else f"{optimum.value:.3g}"
    loss = "" if optimum.loss is None else f"{optimum.loss:.4f}"
    remark = optimum.reason if optimum.bracketed else f"not bracketed: {optimum.reason or optimum.state}"
    return [best, *ends, loss, f"{optimum.diverged} of {optimum.trials}", remark]


def comparison_line(comparison: Comparison, words: str) -> str:
    lost = "what that loses cannot be told" if comparison.lost is None else f"{comparison.lost:.4f} nats lost"
    ratio = "nothing found there to compare with" if comparison.ratio is None else f"{comparison.ratio:.3g} x the one found there"
    return f"width {comparison.width}, which no fit saw, {words}: {comparison.predicted:.3g}, {ratio}; {lost}"


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
        Path | None,
        Parameter(
            metavar="FILE", help="The record. Default: transfer-NAME.json in the sweep's directory, numbered where there is one."
        ),
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
    path = out or _unused(sweep_directory, f"transfer-{Path(record.target_recipe).stem}")
    if path.is_dir():
        raise ConfigError(f"{path} is a directory", "the record is one file", "name a file", "--out")
    make_directory(path.parent, "directory for the record")
    write_json(path, record.to_json())
    if json:
        print_json(record.to_json() | {"file": str(path)})
    else:
        _say_all(transfer_lines(record, path))
    return EXIT_FINDINGS if record.refused else EXIT_OK


def _unused(directory: Path, stem: str) -> Path:
    """Earlier records stay, those of refusals too."""
    names = (f"{stem}.json", *(f"{stem}-{number}.json" for number in range(2, 10_000)))
    return next(directory / name for name in names if not (directory / name).exists())


def transfer_lines(record: Transfer, path: Path) -> Iterator[str]:
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
        for line in record.another_kind:
            yield f"another kind of thing was tuned: {line}"
        yield 'refused: nothing is set. Sweep a proxy like the target, over more widths, or give a reason: --despite "REASON"'
    else:
        if record.despite is not None:
            yield f"set despite that: {record.despite}"
        yield "run the target with:"
        yield f"  headway run {record.target_recipe} {_set_options((*record.target_overrides, *record.overrides))}"
    yield f"written: {path}"


def _set_options(overrides: Sequence[str]) -> str:
    import shlex

    return " ".join(f"--set {shlex.quote(override)}" for override in overrides)


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

"""The run-design worksheet as people write it: what is reserved, how it is shared out, at what rate it computes.

    [reservation]   devices, duration, accelerator                the whole
    [first]         post_training, context                        taken off the whole before anything else
    [shares]        exploration, rehearsal, main, contingency     of the rest; they sum to 100 %
    [main]          annealing, recovery, final_evaluation         of the main share
    [rate]          lower, base, upper; counts, window            per device
    [[models]]      name, parameters
    [prices]  [power]  [checkpoints]

As strict as a recipe: every quantity with its unit, all problems at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from headway.base.errors import ConfigError, Problem
from headway.formulas.flop_rates import Counts, Rate, Window, model_end_to_end
from headway.recipe.checks import Finding, nearest_hint
from headway.recipe.chips import Chip, check_peak, find_chip
from headway.recipe.fields import FlopRate, Name, Parameters, Percent, Seconds, Section, Some, Version, Whole, WholeOrZero
from headway.recipe.lines import KeyPath
from headway.recipe.load import place, preset_directory, read_document, sorted_problems
from headway.recipe.problems import parse_all, read_part
from headway.recipe.schema import said

SUFFIX = ".worksheet.toml"
EXAMPLE = "256-gpu"

NotNegative = Annotated[float, Field(ge=0, le=1e9)]

# --- the file -----------------------------------------------------------------------------------------------------------


class Reservation(Section):
    """The whole."""

    devices: Whole = said("accelerators, at most 2^31", le=2**31)
    duration: Annotated[Seconds, Field(gt=0)] = said("how long they are reserved, duration such as 90days")
    accelerator: str | None = said("a chip of the table; None: no peak, watts or utilisation is shown", None)
    peak: FlopRate | None = said("dense peak, to be checked against the chip; None: the chip's", None)
    precision: Literal["bfloat16", "float16", "float8"] = said("precision of that peak", "bfloat16")

    @property
    def chip(self) -> Chip | None:
        return find_chip(self.accelerator) if self.accelerator else None


class First(Section):
    """Shares of the whole reservation that somebody else's plan needs: taken off before anything is shared out."""

    post_training: Percent = said("for instruction tuning, preferences, reinforcement learning", 0.0)
    context: Percent = said("for context extension, where it does not share the main window", 0.0)


class Shares(Section):
    """Shares of what is left. They sum to 100 %."""

    exploration: Percent = said("proxies, sweeps, ablations")
    rehearsal: Percent = said("the whole stack at full size, before the start")
    main: Percent = said("the main run")
    contingency: Percent = said("for what goes wrong otherwise")


class Main(Section):
    """Shares of the main share."""

    annealing: Percent = said("last phase, on curated data; its tokens are base tokens too", 0.0)
    recovery: Percent = said("rollbacks and repeated work after incidents, which no rate holds", 0.0)
    final_evaluation: Percent = said("full evaluation of the finished model", 0.0)


class RateRange(Section):
    """FLOP/s of one device, lower, base and upper, and what they count."""

    lower: FlopRate = said("if things go badly, such as 150 TFLOP/s")
    base: FlopRate = said("what is expected")
    upper: FlopRate = said("if things go well")
    counts: Literal["model", "hardware"] = said(
        "model: useful FLOPs (MFU); hardware: executed ones, recomputation included (HFU)"
    )
    window: Literal["healthy", "end-to-end"] = said("healthy: good steps only; end-to-end: failures, replay and saves are in it")
    recompute: Annotated[float, Field(ge=1, le=4)] | None = said("executed over useful FLOPs, for hardware rates only", None)
    goodput: Annotated[Percent, Field(gt=0)] | None = said("useful share of all time, for healthy rates only", None)
    source: str = said("what the rate stands on: a rehearsal, a published run, an assumption", "assigned")

    def model_rates(self) -> tuple[float, float, float]:
        """Lower, base and upper as useful FLOP/s over all time, by the factors that the declared kind needs."""
        counts, window = Counts(self.counts), Window(self.window)
        declared = (Rate(flops_per_second=one, counts=counts, window=window) for one in (self.lower, self.base, self.upper))
        low, base, high = (model_end_to_end(rate, self.recompute, self.goodput).flops_per_second for rate in declared)
        return low, base, high


class CandidateModel(Section):
    """A model that the main share could train."""

    name: Name = said("as people call it")
    parameters: Parameters = said("parameters that a token passes, N of 6 N: of a mixture of experts the active ones")
    stored: Parameters | None = said("parameters that a checkpoint holds; None: the same", None)


class Figure(Section):
    """A figure with its range."""

    base: NotNegative = said("what is expected")
    low: NotNegative | None = said("at least; None: as base", None)
    high: NotNegative | None = said("at most; None: as base", None)
    source: str = said("where it comes from", "")

    @property
    def bounds(self) -> tuple[float, float]:
        return (self.base if self.low is None else self.low, self.base if self.high is None else self.high)


class Prices(Section):
    """Prices, in one currency."""

    currency: str = said("of all prices", "USD")
    device_hour: Figure | None = said("of one device for an hour; None: unknown", None)
    tb_month: Figure | None = said("of 10^12 bytes for 30 days; None: unknown", None)


class Grid(Section):
    """What a device hour takes from the grid."""

    watts: Figure | None = said(
        "per device, its share of host, fans and network included; None: 1.2 to 1.9 times the chip's", None
    )
    pue: Figure | None = said("power of the building over that of the machines, at least 1; None: 1.05 to 1.56", None)
    kg_per_kwh: Figure | None = said("kg of CO2 per kWh of the grid, with its source; None: unknown", None)


class Kept(Section):
    """Checkpoints of the main run that are kept for good."""

    every: Annotated[Seconds, Field(ge=1)] = said("time between two checkpoints, duration, at least 1s", 1800.0)
    permanent_every: WholeOrZero = said("every n-th is kept; 0: none", 8)
    bytes_per_parameter: Annotated[int, Field(ge=2, le=32)] = said("12: fp32 weights and two moments; 16: gradients too", 12)
    kept_for: Seconds = said("time that they are kept after the run, duration", 0.0)


class Worksheet(Section):
    """A reservation, shared out."""

    kind: Literal["worksheet"] = said("says that this file is a worksheet")
    schema_version: Version = said("version of this format", 1)
    name: Name = said("name of the plan")
    reservation: Reservation = said("the whole")
    first: First = said("taken off first", First())
    shares: Shares = said("shares of the rest")
    main: Main = said("shares of the main share", Main())
    rate: RateRange = said("FLOP/s of one device")
    models: Some[CandidateModel] = said("models to weigh; at least one")
    prices: Prices = said("prices", Prices())
    power: Grid = said("what it takes from the grid", Grid())
    checkpoints: Kept = said("checkpoints that are kept", Kept())


# --- reading ------------------------------------------------------------------------------------------------------------


def load_worksheet(path_or_name: str | Path, overrides: Iterable[str] = ()) -> Worksheet:
    """Read a worksheet from a file, or a shipped one by its name; ConfigError lists every problem."""
    document, problems = read_document(find_worksheet(path_or_name), list(overrides), kind="worksheet")
    worksheet, found = parse_all(Worksheet, document)

    def part(name: str) -> Any:
        """A section that can be read, also where others cannot: a slip in one does not hide a contradiction in another."""
        if worksheet is not None:
            return getattr(worksheet, name)
        return read_part(Worksheet.model_fields[name].annotation, document.data.get(name))

    problems += found + place(check_worksheet(part), document)
    if problems:
        raise ConfigError(sorted_problems(problems))
    assert worksheet is not None
    return worksheet


def worksheet_names() -> list[str]:
    return sorted(path.name.removesuffix(SUFFIX) for path in preset_directory().glob(f"*{SUFFIX}"))


def find_worksheet(given: str | Path) -> Path:
    """A path as given, or a shipped worksheet; ``example`` is the one of 256 devices."""
    path, name = Path(given), EXAMPLE if str(given) == "example" else str(given)
    if path.suffix or len(path.parts) > 1:
        return path
    if name in worksheet_names():
        return preset_directory() / f"{name}{SUFFIX}"
    known = [*worksheet_names(), "example"]
    rule = f"shipped are {', '.join(known)}; a file is named with its suffix or its directory"
    raise ConfigError(
        f"there is no worksheet named {name!r}", rule, nearest_hint(name, known) or f"for a file write ./{name}.toml"
    )


def check_worksheet(part: Callable[[str], Any]) -> Iterator[Finding]:
    """What no single field can know, of every section that could be read: ``part(name)`` is the section or None."""
    for names, check in CHECKS:
        sections = [part(name) for name in names]
        if all(section is not None for section in sections):
            yield from check(*sections)


def _check_shares(shares: Shares) -> Iterator[Finding]:
    parts = shares.model_dump()
    total = sum(parts.values())
    if abs(total - 1) > SUM_TOLERANCE:
        words = " + ".join(f"{name} {100 * share:.12g}" for name, share in parts.items())
        off = f"{100 * abs(total - 1):.4g} % {'are given twice' if total > 1 else 'belong to nobody'}"
        yield ("shares",), Problem(f"the shares sum to {100 * total:.12g} %: {words}", "they share out the whole: 100 %", off)


def _check_left(first: First, main: Main) -> Iterator[Finding]:
    for name, section, words in (("first", first, "of the reservation"), ("main", main, "of the main share")):
        taken = sum(section.model_dump().values())
        if taken >= 1:
            yield (
                (name,),
                Problem(f"{100 * taken:.6g} % {words} are taken off", "something must be left to train with", "take less"),
            )


def _check_rate(rate: RateRange) -> Iterator[Finding]:
    if not rate.lower <= rate.base <= rate.upper:
        seen = f"rates of {rate.lower:.4g}, {rate.base:.4g}, {rate.upper:.4g} FLOP/s"
        yield ("rate", "base"), Problem(seen, "lower <= base <= upper", "put them in order")
    try:
        rate.model_rates()
    except ConfigError as error:
        yield from ((("rate",), problem) for problem in error.problems)


def _check_chip(reservation: Reservation) -> Iterator[Finding]:
    """A chip of the table, and a peak that is its dense one."""
    try:
        chip = reservation.chip
    except ConfigError as error:
        yield from ((("reservation", "accelerator"), problem) for problem in error.problems)
        return
    yield from _above_peak(("reservation", "peak"), chip, reservation.peak, reservation.precision)
    if chip is not None and reservation.precision not in chip.peaks:
        seen = f"{chip.name} has no rate in {reservation.precision}"
        rule = f"it computes in {', '.join(chip.peaks)}"
        yield ("reservation", "precision"), Problem(seen, rule, "choose one of them, or another accelerator")


def _check_rate_on_chip(reservation: Reservation, rate: RateRange) -> Iterator[Finding]:
    """No rate above what the chip can do; a chip that is not known was reported already."""
    try:
        chip = reservation.chip
    except ConfigError:
        return
    yield from _above_peak(("rate", "upper"), chip, rate.upper, reservation.precision)


def _above_peak(path: KeyPath, chip: Chip | None, stated: float | None, precision: str) -> Iterator[Finding]:
    if chip is None or stated is None:
        return
    try:
        check_peak(chip, stated, precision)
    except ConfigError as error:
        yield from ((path, problem) for problem in error.problems)


def _check_figures(prices: Prices, power: Grid) -> Iterator[Finding]:
    figures = [("prices", name, figure) for name, figure in prices] + [("power", name, figure) for name, figure in power]
    for section, name, figure in figures:
        if isinstance(figure, Figure) and not figure.bounds[0] <= figure.base <= figure.bounds[1]:
            seen = f"{section}.{name}: low {figure.bounds[0]:g}, base {figure.base:g}, high {figure.bounds[1]:g}"
            yield (section, name), Problem(seen, "low <= base <= high", "put them in order")
    if power.pue is not None and power.pue.bounds[0] < 1:
        seen = f"a PUE of {power.pue.bounds[0]:g}"
        yield ("power", "pue"), Problem(seen, "the building takes at least what its machines take: 1 or more", "")


def _check_models(models: tuple[CandidateModel, ...]) -> Iterator[Finding]:
    names = [model.name for model in models]
    for at, name in enumerate(names):
        if name in names[:at]:
            yield ("models", at, "name"), Problem(f"two models are named {name!r}", "every name is used once", "rename one")
        if (stored := models[at].stored) is not None and stored < models[at].parameters:
            seen = f"{stored:,} stored parameters of {name!r}, and a token passes {models[at].parameters:,}"
            yield (
                ("models", at, "stored"),
                Problem(seen, "a token passes some of the stored parameters", "raise it, or remove it"),
            )


SUM_TOLERANCE = 1e-9
CHECKS: tuple[tuple[tuple[str, ...], Callable[..., Iterator[Finding]]], ...] = (
    (("shares",), _check_shares),
    (("first", "main"), _check_left),
    (("rate",), _check_rate),
    (("reservation",), _check_chip),
    (("reservation", "rate"), _check_rate_on_chip),
    (("prices", "power"), _check_figures),
    (("models",), _check_models),
)

"""The coordinate check: are activations, gradients and updates of one order at every width?

    proxy  --> a Spec per arm, width and seed --> engine
    engine --> rows (arm, width, step, seed, module, quantity, value)     value: RMS, scaled by the theory to be of order one
    rows   --> log2 value = level + slope x log2 width, per (module, quantity, step); seeds averaged in log2
    slopes --> verdict

Under muP every slope is about zero from step 2 on: what was initialised alike stays alike once it was updated. The standard
parametrisation is the control, measured by the same rulers: some of its slopes must leave the pass band. Where none does, the
widths, steps or rate were too small to see anything, and the check says so in place of a pass.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headway.base.errors import ConfigError, RunError
from headway.base.files import make_directory, write_json
from headway.base.plain import from_plain
from headway.experiment.asking import Ask
from headway.experiment.grid import PARAMETRIZATIONS, Proxy, crossed, refuse_widths
from headway.recipe.resolve import resolve

BAND = 0.1
"""Largest slope, in octaves per octave of width, that counts as none."""
FIRST_JUDGED_STEP = 2
"""Before it a model is as it was initialised: an update that is too large or too small has not shown yet."""
MOST_STEPS, MOST_SEEDS = 1000, 100
QUANTITIES = ("activation_change", "gradient", "update")
ARMS = PARAMETRIZATIONS
ERRORS = 3.0
"""A slope outside of the band by less than so many of its standard errors over seeds may be noise: dozens of lines are judged."""
PASSES, FAILS = "passes", "fails"
BLIND, NOISY = "the check cannot tell: the control passed", "the check cannot tell: seeds differ by as much"


@dataclass(frozen=True)
class Row:
    """One measurement. ``value`` is None where it is not a number."""

    width: int
    step: int
    seed: int
    module: str
    quantity: str
    value: float | None


@dataclass(frozen=True)
class Arm:
    """All measurements of one parametrisation."""

    parametrization: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """What the engine answers to a coordinate check."""

    arms: tuple[Arm, ...]
    kind: str
    schema_version: int


@dataclass(frozen=True, kw_only=True)
class Line:
    """Of one module, quantity and step: the mean of log2 value over seeds, per width, and its slope over log2 width.

    ``slope`` and the means are None where a value was zero or not a number; ``spread``: largest less smallest slope of seeds,
    ``error``: the slope's standard error over seeds, 0 with one.
    """

    module: str
    quantity: str
    step: int
    widths: tuple[int, ...]
    log2_values: tuple[float | None, ...]
    slope: float | None
    spread: float | None
    error: float = 0.0

    @property
    def judged(self) -> bool:
        return self.step >= FIRST_JUDGED_STEP

    @property
    def passes(self) -> bool:
        return self.slope is not None and abs(self.slope) <= BAND

    @property
    def surely_fails(self) -> bool:
        return self.slope is None or abs(self.slope) - ERRORS * self.error > BAND


@dataclass(frozen=True, kw_only=True)
class Check:
    """The verdict, and every line of both arms."""

    verdict: str
    reason: str
    lines: Mapping[str, tuple[Line, ...]]
    band: float = field(default=BAND)

    @property
    def passed(self) -> bool:
        return self.verdict == PASSES

    def to_json(self) -> dict[str, Any]:
        arms = {
            arm: [dataclasses.asdict(line) | {"judged": line.judged, "passes": line.passes} for line in lines]
            for arm, lines in self.lines.items()
        }
        return {
            "kind": "mup_check",
            "schema_version": 1,
            "verdict": self.verdict,
            "reason": self.reason,
            "band": self.band,
            "first_judged_step": FIRST_JUDGED_STEP,
            "arms": arms,
        }


@dataclass(frozen=True, kw_only=True)
class Asked:
    """``widths``: two or more, each with whole heads. ConfigError for what the check has no use for."""

    widths: tuple[int, ...]
    steps: int
    seeds: int

    def refuse(self, proxy: Proxy) -> None:
        if len(self.widths) < 2:
            raise ConfigError("one width", "a slope over width needs two or more", "such as --widths 64,128,256", "--widths")
        refuse_widths(proxy, self.widths, "--widths")
        if not FIRST_JUDGED_STEP <= self.steps <= MOST_STEPS:
            rule = f"slopes are judged from step {FIRST_JUDGED_STEP} on, and {MOST_STEPS:,} steps are enough"
            raise ConfigError(f"{self.steps} steps", rule, "such as 4", "--steps")
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise ConfigError(f"{self.seeds} seeds", f"a check has 1 to {MOST_SEEDS} seeds", "such as --seeds 2", "--seeds")


def default_widths(proxy: Proxy) -> tuple[int, ...]:
    own = proxy.base.width
    return own, 2 * own, 4 * own


def measure(proxy: Proxy, asked: Asked, root: Path, ask: Ask) -> dict[str, Arm]:
    """What the engine measured, by arm. Specs and request lie in ``root``, a whole path."""
    asked.refuse(proxy)
    make_directory(root, "directory for the check")
    specs = make_directory(root / "specs", "directory for the specs")
    arms = [{"parametrization": name, "specs": list(map(str, _write_specs(proxy, asked, name, specs)))} for name in ARMS]
    request = {"kind": "mup_check_request", "schema_version": 1, "arms": arms, "steps": asked.steps}
    write_json(root / "request.json", request)
    return read_measurements(ask("mup-check", [str(root / "request.json")]))


def _write_specs(proxy: Proxy, asked: Asked, parametrization: str, directory: Path) -> list[Path]:
    seeds = [proxy.base.seed + place for place in range(asked.seeds)]
    settings = crossed(proxy.base, parametrization=[parametrization], width=asked.widths, seed=seeds)
    paths = [directory / f"{setting.id}.json" for setting in settings]
    for setting, path in zip(settings, paths, strict=True):
        write_json(path, resolve(proxy.recipe(setting), None).to_json())
    return paths


def read_measurements(value: Any) -> dict[str, Arm]:
    """The engine's answer by arm; RunError where it is not what was asked for."""
    read = from_plain(Measurements, value, "the coordinate measurements")
    _require(read.kind == "mup_coordinates" and read.schema_version == 1, f"{read.kind} of schema {read.schema_version}")
    names = [arm.parametrization for arm in read.arms]
    _require(sorted(names) == sorted(ARMS), f"measurements of {', '.join(names) or 'nothing'}")
    for arm in read.arms:
        _require(len({row.width for row in arm.rows}) > 1, f"fewer than two widths of {arm.parametrization}")
        unknown = sorted({row.quantity for row in arm.rows} - set(QUANTITIES))
        _require(not unknown, f"unknown quantities {', '.join(unknown)}")
        _require(max(row.step for row in arm.rows) >= FIRST_JUDGED_STEP, f"no step after {FIRST_JUDGED_STEP - 1}")
        _require(min(row.width for row in arm.rows) > 0, "a width that is not positive")
    return {name: next(arm for arm in read.arms if arm.parametrization == name) for name in ARMS}


def _require(holds: bool, seen: str) -> None:
    if not holds:
        rule = f"a coordinate check has both arms, {' and '.join(ARMS)}, over two widths or more and steps to {FIRST_JUDGED_STEP}"
        raise RunError(f"the engine measured {seen}", rule, "check the widths and steps that were asked for")


def judge(arms: Mapping[str, Arm]) -> Check:
    """The verdict over both arms."""
    lines = {name: _lines(arm.rows) for name, arm in arms.items()}
    bad = [line for line in lines["mup"] if line.judged and not line.passes]
    caught = [line for line in lines["standard"] if line.judged and line.surely_fails]
    sure = [line for line in bad if line.surely_fails]
    if bad and not sure:
        worst = max(bad, key=_badness)
        seen = f"{len(bad)} lines leave the band of {BAND:g}; {_name(worst)} has slope {worst.slope:+.2f} +- {worst.error:.2f}"
        return Check(verdict=NOISY, reason=f"{seen} over seeds: try more --seeds", lines=lines)
    if sure:
        worst = max(sure, key=_badness)
        slope = "has no slope: a value is zero or not a number" if worst.slope is None else f"has slope {worst.slope:+.2f}"
        count = f"{len(sure)} of {sum(line.judged for line in lines['mup'])} lines leave the band of {BAND:g}"
        return Check(verdict=FAILS, reason=f"{count}; {_name(worst)} {slope}", lines=lines)
    if not caught:
        reason = f"the standard parametrisation stays within {BAND:g} as well: try more widths, more steps or a higher rate"
        return Check(verdict=BLIND, reason=reason, lines=lines)
    worst = max(caught, key=_badness)
    shown = "no slope" if worst.slope is None else f"slope {worst.slope:+.2f}"
    reason = f"every slope is within {BAND:g}; the standard parametrisation's {_name(worst)} has {shown}"
    return Check(verdict=PASSES, reason=reason, lines=lines)


def _badness(line: Line) -> float:
    return float("inf") if line.slope is None else abs(line.slope)


def _name(line: Line) -> str:
    return f"{line.quantity.replace('_', ' ')} of {line.module} at step {line.step}"


def _lines(rows: Sequence[Row]) -> tuple[Line, ...]:
    groups: dict[tuple[str, str, int], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.module, row.quantity, row.step].append(row)
    order = sorted(groups, key=lambda key: (QUANTITIES.index(key[1]), key[0], key[2]))
    widths, seeds = tuple(sorted({row.width for row in rows})), sorted({row.seed for row in rows})
    return tuple(_line(key, groups[key], widths, seeds) for key in order)


def _line(key: tuple[str, str, int], rows: Sequence[Row], widths: tuple[int, ...], seeds: Sequence[int]) -> Line:
    """A width or a seed that is missing leaves the line without a slope: it is never fitted over fewer than the others."""
    values = {(row.width, row.seed): row.value for row in rows}
    table = np.array([[_log2(values.get((width, seed))) for width in widths] for seed in seeds])
    x = np.log2(widths) - np.log2(widths).mean()
    known = bool(np.isfinite(table).all())
    slopes = table @ x / (x @ x) if known else np.array([])
    means = table.mean(axis=0)
    return Line(
        module=key[0],
        quantity=key[1],
        step=key[2],
        widths=widths,
        log2_values=tuple(float(mean) if np.isfinite(mean) else None for mean in means),
        slope=float(slopes.mean()) if known else None,
        spread=float(np.ptp(slopes)) if known else None,
        error=float(slopes.std(ddof=1) / len(slopes) ** 0.5) if len(slopes) > 1 else 0.0,
    )


def _log2(value: float | None) -> float:
    return float(np.log2(value)) if value is not None and 0 < value < float("inf") else float("nan")

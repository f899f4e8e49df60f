"""What the records of a sweep say: curves, optima, drift, and the width that no fit saw.

settings + records -> curves (parametrisation, hyperparameter) -> width -> points -> optima -> drift -> verdict
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.experiment.grid import Setting, Settings
from headway.experiment.optimum import Noise, Optimum, Point, best_value, optima, optimum, pooled_noise
from headway.experiment.records import TrialRecord
from headway.experiment.transfer import FACTOR, Comparison, Drift, carried, compare, drift_of, overall

WORDS = {"rate": "peak rate", "warmup_tokens": "warm-up, tokens", "init_std": "init scale"}
"""What is swept, and how it is called."""
Curves = Mapping[int, list[Point]]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One hyperparameter of one parametrisation over the widths. ``held_out``: the carried value there, against what was found.

    ``by_line``: the same for the value on the fitted line, which follows a drift. None where there is no such width, or
    nothing to carry.
    """

    parametrization: str
    hyperparameter: str
    curves: Curves
    optima: Mapping[int, Optimum]
    drift: Drift
    carried: Optimum | None
    noise: Noise | None
    held_out_curve: tuple[int, list[Point]] | None = None
    held_out_optimum: Optimum | None = None
    held_out: Comparison | None = None
    by_line: Comparison | None = None

    @property
    def verdict(self) -> tuple[str, str]:
        return overall(self.drift, self.held_out)

    def to_json(self) -> dict[str, Any]:
        verdict, reason = self.verdict
        return {
            "parametrization": self.parametrization,
            "hyperparameter": self.hyperparameter,
            "verdict": verdict,
            "reason": reason,
            "optima": {str(width): found.to_json() for width, found in self.optima.items()},
            "drift": self.drift.to_json(),
            "carried": None if self.carried is None else self.carried.to_json(),
            "noise": None if self.noise is None else dataclasses.asdict(self.noise),
            "held_out_optimum": None if self.held_out_optimum is None else self.held_out_optimum.to_json(),
            "held_out": None if self.held_out is None else self.held_out.to_json(),
            "held_out_by_line": None if self.by_line is None else self.by_line.to_json(),
        }


@dataclass(frozen=True)
class Outcome:
    """Of a whole sweep. The verdict is that of muP's rate; the other findings stand beside it."""

    findings: tuple[Finding, ...]
    trials: int
    diverged: int

    def finding(self, parametrization: str, hyperparameter: str) -> Finding | None:
        pair = (parametrization, hyperparameter)
        return next((f for f in self.findings if (f.parametrization, f.hyperparameter) == pair), None)

    @property
    def rate(self) -> Finding:
        found = self.finding("mup", "rate")
        assert found is not None, "every sweep has muP's rates"
        return found

    def to_json(self) -> dict[str, Any]:
        verdict, reason = self.rate.verdict
        counts = {"trials": self.trials, "diverged": self.diverged}
        return {"verdict": verdict, "reason": reason, **counts, "findings": [finding.to_json() for finding in self.findings]}


def outcome_of(settings: Settings, records: Mapping[Setting, TrialRecord], allowed: float = FACTOR) -> Outcome:
    """Everything that the records say, judged at the factor ``allowed``."""
    findings = [_rates(settings, records, parametrization, allowed) for parametrization in settings.parametrizations]
    noise = findings[0].noise
    for name, values in (("warmup_tokens", settings.warmups), ("init_std", settings.init_stds)):
        if len(values) > 1:
            findings.append(_rest(settings, records, name, noise, allowed))
    return Outcome(tuple(findings), len(records), sum(record.diverged for record in records.values()))


def _rates(settings: Settings, records: Mapping[Setting, TrialRecord], parametrization: str, allowed: float) -> Finding:
    at = {
        width: dataclasses.replace(settings.base, parametrization=parametrization, width=width) for width in settings.all_widths
    }
    curves = {width: curve_of(records, setting, "rate") for width, setting in at.items()}
    held_out = None if settings.hold_out is None else (settings.hold_out, curves.pop(settings.hold_out))
    noise = pooled_noise(curves.values())
    found = optima(curves, noise)
    drift, value = drift_of(found, allowed), carried(found)
    finding = Finding(
        parametrization=parametrization,
        hyperparameter="rate",
        curves=curves,
        optima=found,
        drift=drift,
        carried=value,
        noise=noise,
    )
    return finding if held_out is None else _with_held_out(finding, *held_out)


def _with_held_out(finding: Finding, width: int, points: list[Point]) -> Finding:
    there = optimum(points, finding.noise)
    allowed = finding.drift.allowed

    def against(value: float | None) -> Comparison | None:
        return None if value is None else compare(width, value, there, points, allowed)

    return dataclasses.replace(
        finding,
        held_out_curve=(width, points),
        held_out_optimum=there,
        held_out=against(finding.carried.value if finding.carried else None),
        by_line=against(finding.drift.on_line(width)),
    )


def _rest(settings: Settings, records: Mapping[Setting, TrialRecord], name: str, noise: Noise | None, allowed: float) -> Finding:
    """Of muP, at each width's best rate; a trial's noise is that of the rates, which have more trials to tell it from."""
    curves = {}
    for width in settings.widths:
        rate = best_value(_first_rates(settings, records, width)) or settings.rates[0]  # where all diverged, the lowest did
        best = dataclasses.replace(settings.base, width=width, rate=rate)
        curves[width] = curve_of(records, best, name)
    found = optima(curves, noise)
    return Finding(
        parametrization="mup",
        hyperparameter=name,
        curves=curves,
        optima=found,
        drift=drift_of(found, allowed),
        carried=carried(found),
        noise=noise,
    )


def _first_rates(settings: Settings, records: Mapping[Setting, TrialRecord], width: int) -> list[Point]:
    """Phase 1 of muP at ``width``."""
    at = dataclasses.replace(settings.base, width=width)
    return [records[dataclasses.replace(at, rate=rate)].point("rate") for rate in settings.rates]


def curve_of(records: Mapping[Setting, TrialRecord], at: Setting, name: str) -> list[Point]:
    """All trials that differ from ``at`` in ``name`` and the seed only."""
    free = {name: getattr(at, name), "seed": at.seed}
    return [record.point(name) for setting, record in records.items() if dataclasses.replace(setting, **free) == at]

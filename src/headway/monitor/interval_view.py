"""Which interval between checkpoints is in force, why, and what another would cost. From records; decides nothing.

    loss(tau) = c / tau  +  tau / 2 M          c a save, M between interruptions, tau the interval: of training time, first order

The trainer chooses (``interval``); where the deployment states steps instead, the same costs say what that number loses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from headway.base.units import format_seconds
from headway.formulas.checkpoint_interval import overhead_shares
from headway.formulas.failure_estimate import FailureRate
from headway.monitor.interruptions import read_interruptions
from headway.monitor.interval import ASSUMED, NEWEST, STATED_WEIGHT, Interval, IntervalPolicy

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Shares of training time that an interval loses, to first order."""

    interval_seconds: float
    saves: float
    replay: float
    what: str = ""  # in force, or best

    @property
    def total(self) -> float:
        return self.saves + self.replay


@dataclass(frozen=True, kw_only=True)
class Place:
    """One place that a snapshot reaches, and how often a restart found it there."""

    name: str
    every_seconds: float | None
    cost: str
    survives: str
    restores: int


@dataclass(frozen=True, kw_only=True)
class IntervalReport:
    """``in_force_seconds`` None: not known yet, ``reason`` says why. Costs are empty until a save has been measured."""

    adaptive: bool
    in_force_seconds: float | None
    reason: str
    changes: int
    interruptions: int
    between_seconds: float
    between_range: tuple[float, float]
    save_seconds: float | None
    best_seconds: float | None
    costs: tuple[Cost, ...]
    places: tuple[Place, ...]

    def to_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        costs = [asdict(cost) | {"total": cost.total} for cost in self.costs]
        return plain | {"costs": costs, "places": [asdict(place) for place in self.places]}


def interval_report(events: list[dict], steps: dict[int, list[dict]], deployment: Mapping[str, Any]) -> IntervalReport | None:
    """``deployment``: resolved, in force. None: no step is on record, or the deployment is not one of this version."""
    rows = [row for _, own in sorted(steps.items()) for row in own]
    times = [_step_ns(row) for row in rows if row["kind"] == "step"]
    section = deployment.get("checkpoints")
    if not times or not isinstance(section, Mapping) or type(section.get("every_steps")) is not int:
        return None
    adaptive = section.get("adaptive") is not None
    step_seconds = median(times[-NEWEST * 8 :]) / 1e9
    measured = Interval.start(_unbounded(deployment), events=events, steps=steps, now_ns=0)
    rate, best = measured.rate.after_quiet(measured.quiet_seconds), measured.decision
    changes = [row for row in rows if row["kind"] == "interval"]
    in_force, reason = _in_force(changes, section, step_seconds) if not adaptive or changes else (None, "no step was timed yet")
    save_seconds = best.save_seconds if best else None
    seen = read_interruptions(events, steps)
    return IntervalReport(
        adaptive=adaptive,
        in_force_seconds=in_force,
        reason=reason,
        changes=len(changes),
        interruptions=len(seen.gaps),
        between_seconds=rate.between_seconds,
        between_range=rate.between_range_seconds,
        save_seconds=save_seconds,
        best_seconds=best.interval_seconds if best else None,
        costs=_costs(in_force, best.interval_seconds if best else None, save_seconds, rate),
        places=_places(rows, section, in_force),
    )


def _unbounded(deployment: Mapping[str, Any]) -> IntervalPolicy:
    """To ask what would be best: the deployment's failure rate, no bounds."""
    failures = deployment.get("failures") or {}
    world = int(deployment.get("nodes", 1)) * int(deployment.get("processes_per_node", 1))
    each, whole = failures.get("per_device"), failures.get("every")
    between = each / world if each else whole
    stated = FailureRate(interruptions=STATED_WEIGHT, at_risk_seconds=STATED_WEIGHT * max(between or 0.0, 1.0))
    return IntervalPolicy(
        least_seconds=1e-9,
        most_seconds=1e18,
        every_steps=1,
        restart_seconds=float(failures.get("restart", 60.0)),
        prior=stated if between else ASSUMED,
    )


def _in_force(changes: Sequence[dict], section: Mapping[str, Any], step_seconds: float) -> tuple[float, str]:
    if section.get("adaptive") is None:
        every = section["every_steps"]
        words = f"checkpoints.every_steps = {every}, at {format_seconds(step_seconds)} a step"
        return every * step_seconds, f"{words}; checkpoints.adaptive would let it follow what it costs"
    return float(changes[-1]["seconds"]), str(changes[-1].get("reason", ""))


def _costs(in_force: float | None, best: float | None, save_seconds: float | None, rate: FailureRate) -> tuple[Cost, ...]:
    if in_force is None or best is None or save_seconds is None:
        return ()
    wanted = {factor * in_force: "in force" if factor == 1 else "" for factor in FACTORS}
    wanted[best] = wanted.get(best) or "best"
    found = []
    for seconds, what in sorted(wanted.items()):
        saves, replay = overhead_shares(seconds, save_seconds, rate.between_seconds)
        found.append(Cost(interval_seconds=seconds, saves=saves, replay=replay, what=what))
    return tuple(found)


def _places(rows: Sequence[dict], section: Mapping[str, Any], in_force: float | None) -> tuple[Place, ...]:
    """Every save passes them in this order; all follow the one interval, the second place every n-th."""
    restored = [row for row in rows if row["kind"] == "restored" and row.get("checkpoint")]
    memory = sum(row.get("from_memory") is True for row in restored)
    blocked = _median_words([row.get("blocking_ns") for row in rows if row["kind"] in ("snapshot", "save")])
    written = _median_words([row.get("flush_ns") for row in rows if row["kind"] == "save"])
    places = [
        Place(
            name="host memory",
            every_seconds=in_force,
            cost=f"training waits {blocked}" if blocked else "not measured",
            survives="the end of a process",
            restores=memory,
        ),
        Place(
            name="run directory",
            every_seconds=in_force,
            cost=f"written beside training in {written}" if written else "written while training waits",
            survives="the end of a node, where it lies on shared storage",
            restores=len(restored) - memory,
        ),
    ]
    if section.get("mirror"):
        every = int(section.get("mirror_every", 1))
        places.append(
            Place(
                name="mirror",
                every_seconds=None if in_force is None else in_force * every,
                cost=f"every {every}. checkpoint, copied beside training" if every > 1 else "copied beside training",
                survives="the loss of the run directory",
                restores=0,
            )
        )
    return tuple(places)


def _median_words(values: Sequence[Any]) -> str:
    numbers = [value for value in values if type(value) is int][-NEWEST:]
    return format_seconds(median(numbers) / 1e9) if numbers else ""


def _step_ns(row: dict) -> int:
    return sum(row.get("split", {}).values())

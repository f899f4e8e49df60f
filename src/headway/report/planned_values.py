"""Which quantity of the plan is compared with which fact of the run. Absent on either side is shown as absent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.report.material import Material

WORK = ("productive", "data_stall", "blocking_save", "evaluation")
"""Categories of time that a plan predicts; the rest is start-up, faults and pauses."""


@dataclass(frozen=True)
class Compared:
    """One line of plan against actual. ``names``: the plan's name of the quantity, the first that is there counts."""

    label: str
    names: tuple[str, ...]
    unit: str
    actual: Callable[[Material], float | int | None]
    whole_run: bool = False  # only comparable once the run is complete
    also: tuple[str, ...] = ()  # quantities that are added where the plan has them


def plan_quantities(plan: dict[str, Any] | None) -> dict[str, dict]:
    """Every quantity of a stored plan by name, wherever it stands in it."""
    return {str(quantity["name"]): quantity for quantity in _quantities(plan)} if plan else {}


def planned_for(entry: Compared, quantities: dict[str, dict]) -> dict | None:
    """The plan's side of a comparison, with what belongs to it added to value and band; None when the plan is silent."""
    found = next((quantities[name] for name in entry.names if name in quantities), None)
    more = [quantities[name] for name in entry.also if quantities.get(name, {}).get("value") is not None]
    if found is None or found.get("value") is None or not more:
        return found
    total = {key: sum(_or_value(part, key) for part in (found, *more)) for key in ("value", "low", "high")}
    return {**found, **total, "formula": " + ".join(str(part["name"]) for part in (found, *more))}


def _or_value(quantity: dict, key: str) -> float:
    return quantity["value"] if quantity.get(key) is None else quantity[key]


def _quantities(node: Any) -> Iterator[dict]:
    if isinstance(node, dict):
        if {"name", "value", "unit"} <= set(node):
            yield node
        else:
            for value in node.values():
                yield from _quantities(value)
    elif isinstance(node, list):
        for value in node:
            yield from _quantities(value)


def _time_in(*categories: str) -> Callable[[Material], float | None]:
    """Seconds of the ledger in some categories."""

    def seconds(material: Material) -> float | None:
        sums = material.facts.categories
        return sum(sums.get(name, 0) for name in categories) / 1e9 if sums else None

    return seconds


def _wall_seconds(material: Material) -> float | None:
    ledger = material.facts.ledger
    return ledger.total_ns / 1e9 if ledger and ledger.total_ns else None


def step_rate(material: Material) -> float | None:
    """Tokens per second over the steps of the history, waiting for input included."""
    kept = material.facts.kept
    seconds = int(kept.total_ns.sum()) / 1e9
    return int(kept.tokens[-1]) / seconds if seconds else None


def _step_seconds(material: Material) -> float | None:
    kept = material.facts.kept
    return float(np.mean(kept.total_ns)) / 1e9 if len(kept) else None


def _peak_bytes(material: Material) -> int | None:
    found = [
        record["peak_bytes"]
        for attempt in material.facts.segments
        for record in attempt.records
        if isinstance(record.get("peak_bytes"), int)
    ]
    return max(found) if found else None


def _checkpoint_bytes(material: Material) -> int | None:
    saves = material.facts.saves
    return saves[-1].size_bytes if saves else None


def _save_seconds(material: Material) -> float | None:
    saves = material.facts.saves
    return float(np.median([save.blocking_ns for save in saves])) / 1e9 if saves else None


def _evaluation_seconds(material: Material) -> float | None:
    evaluations = [evaluation.ns for evaluation in material.facts.evaluations]
    return float(np.median(evaluations)) / 1e9 if evaluations else None


COMPARED = (
    Compared("parameters", ("parameters",), "parameters", lambda m: m.facts.stored_parameters),
    Compared("steps", ("steps",), "steps", lambda m: m.steps_done, whole_run=True),
    Compared("tokens", ("tokens",), "tokens", lambda m: m.tokens_done, whole_run=True),
    Compared("tokens per second", ("tokens_per_second",), "tokens/s", step_rate),
    Compared("time per step, mean", ("step_seconds",), "seconds", _step_seconds),
    Compared("evaluations", ("evaluations",), "times", lambda m: sum(e.kept for e in m.facts.evaluations), whole_run=True),
    Compared("time of one evaluation, median", ("evaluation_seconds",), "seconds", _evaluation_seconds),
    Compared("checkpoints", ("checkpoints",), "times", lambda m: sum(s.kept for s in m.facts.saves), whole_run=True),
    Compared("checkpoint size", ("checkpoint_bytes",), "bytes", _checkpoint_bytes),
    Compared("time of one save, median", ("save_seconds",), "seconds", _save_seconds),
    Compared("memory, peak", ("memory_bytes",), "bytes", _peak_bytes),
    Compared(
        "training",
        ("training_seconds",),
        "seconds",
        _time_in("productive", "data_stall"),
        whole_run=True,
        also=("digesting_seconds",),
    ),
    Compared("saves", ("saving_seconds",), "seconds", _time_in("blocking_save"), whole_run=True),
    Compared("evaluations and samples", ("evaluating_seconds",), "seconds", _time_in("evaluation"), whole_run=True),
    Compared("all predicted work", ("predicted_seconds",), "seconds", _time_in(*WORK), whole_run=True),
    Compared(
        "wall time, start-up and faults included", ("wall_seconds_with_failures",), "seconds", _wall_seconds, whole_run=True
    ),
)

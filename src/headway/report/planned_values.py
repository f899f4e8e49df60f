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
    planned: Callable[[dict[str, dict]], dict | None] | None = None  # where the plan's own number is not what the run measures


def plan_quantities(plan: dict[str, Any] | None) -> dict[str, dict]:
    """Every quantity of a stored plan by name, wherever it stands in it."""
    return {str(quantity["name"]): quantity for quantity in _quantities(plan)} if plan else {}


def planned_for(entry: Compared, quantities: dict[str, dict]) -> dict | None:
    """The plan's side of a comparison; None when the plan is silent."""
    found = next((quantities[name] for name in entry.names if name in quantities), None)
    return (entry.planned(quantities) if entry.planned else None) or found


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


def _training(quantities: dict[str, dict]) -> dict | None:
    """Steps with the digests of the state that the deployment asks for: a step that runs takes both."""
    steps, digests = quantities.get("training_seconds"), quantities.get("digesting_seconds")
    if not steps or not digests or steps.get("value") is None or digests.get("value") is None:
        return None
    total = {key: _or_value(steps, key) + _or_value(digests, key) for key in ("value", "low", "high")}
    return {**steps, **total, "formula": "training_seconds + digesting_seconds"}


def _per_step(quantities: dict[str, dict]) -> dict | None:
    training, steps = _training(quantities), (quantities.get("steps") or {}).get("value")
    if not training or not steps:
        return None
    shares = {key: training[key] / steps for key in ("value", "low", "high")}
    return {**training, **shares, "formula": f"({training['formula']}) / steps"}


def _rate(quantities: dict[str, dict]) -> dict | None:
    training, tokens = _training(quantities), (quantities.get("tokens") or {}).get("value")
    if not training or not tokens or not training["low"]:
        return None
    rates = {key: tokens / training[other] for key, other in (("value", "value"), ("low", "high"), ("high", "low"))}
    return {**training, **rates, "unit": "tokens/s", "formula": f"tokens / ({training['formula']})"}


def _per_evaluation(quantities: dict[str, dict]) -> dict | None:
    """The plan shows the sum over all evaluations."""
    total, count = quantities.get("evaluating_seconds"), (quantities.get("evaluations") or {}).get("value")
    if not total or total.get("value") is None or not count:
        return None
    shares = {key: _or_value(total, key) / count for key in ("value", "low", "high")}
    return {**total, **shares, "formula": "evaluating_seconds / evaluations"}


def _or_value(quantity: dict, key: str) -> float:
    return quantity["value"] if quantity.get(key) is None else quantity[key]


def _time_in(*categories: str) -> Callable[[Material], float | None]:
    """Seconds of the ledger in some categories."""

    def seconds(material: Material) -> float | None:
        sums = material.facts.categories
        return sum(sums.get(name, 0) for name in categories) / 1e9 if sums else None

    return seconds


def _without_samples(*categories: str) -> Callable[[Material], float | None]:
    """As ``_time_in``, less the time of samples, which no plan predicts."""
    in_all = _time_in(*categories)

    def seconds(material: Material) -> float | None:
        all_seconds = in_all(material)
        return None if all_seconds is None else all_seconds - sum(sample.ns for sample in material.facts.samples) / 1e9

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
    Compared("parameters", ("stored_parameters", "parameters"), "parameters", lambda m: m.facts.stored_parameters),
    Compared("steps", ("steps",), "steps", lambda m: m.steps_done, whole_run=True),
    Compared("tokens", ("tokens",), "tokens", lambda m: m.tokens_done, whole_run=True),
    Compared("tokens per second", ("tokens_per_second",), "tokens/s", step_rate, planned=_rate),
    Compared("time per step, mean", ("step_seconds",), "seconds", _step_seconds, planned=_per_step),
    Compared("evaluations", ("evaluations",), "times", lambda m: sum(e.kept for e in m.facts.evaluations), whole_run=True),
    Compared("time of one evaluation, median", ("evaluation_seconds",), "seconds", _evaluation_seconds, planned=_per_evaluation),
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
        planned=_training,
    ),
    Compared("saves", ("saving_seconds",), "seconds", _time_in("blocking_save"), whole_run=True),
    Compared(
        "all evaluations, without samples", ("evaluating_seconds",), "seconds", _without_samples("evaluation"), whole_run=True
    ),
    Compared("all predicted work", ("predicted_seconds",), "seconds", _without_samples(*WORK), whole_run=True),
    Compared(
        "wall time, start-up and faults included",
        ("wall_seconds", "wall_seconds_with_failures"),  # as plans of before call it
        "seconds",
        _wall_seconds,
        whole_run=True,
    ),
)

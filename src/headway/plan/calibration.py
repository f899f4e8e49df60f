"""Calibrations: what was measured of a run's real steps, saves and evaluations, as a file with a digest.

    RUN --calibration_of_run--> {kind, digest, measured_on, stages, seconds_per_save, ...} --write--> FILE
    FILE --load_calibration--> the same, unchanged since          --calibrated.py--> rates for a Spec on a Deployment

The short live measurement of ``--calibrate`` has no ``measured_on``: it was taken here, for this very spec.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.base.digests import digest_json
from headway.base.errors import ConfigError, HeadwayError, RunError
from headway.base.files import read_json, write_json
from headway.formulas.flops import Convention, flops_per_token
from headway.formulas.parameters import count_parameters
from headway.recipe.digests import section_digests
from headway.recipe.spec import Spec

if TYPE_CHECKING:
    from headway.recipe.deployment import Deployment
    from headway.rundir.layout import RunDirectory

WARM_UP_STEPS = 2  # of each attempt: caches fill, memory is laid out
LEAST_STEPS = 5


# --- from a run ---------------------------------------------------------------------------------------------------------


def calibration_of_run(run: RunDirectory) -> dict[str, Any]:
    """What the run's records say of its steps, saves and evaluations; ConfigError where there is too little of it."""
    spec, info = run.spec(), run.info()
    rows = _kept_rows(run)
    stages = {stage.name: timed for stage in spec.stages if (timed := _stage(rows, stage.name)) is not None}
    if not stages:
        raise ConfigError(
            f"{run.root} has fewer than {LEAST_STEPS} steps of any stage to measure",
            f"the first {WARM_UP_STEPS} steps of every attempt do not count: they warm up",
            "let it run on, or measure this machine with headway plan RECIPE --calibrate",
        )
    content = {
        "kind": "calibration",
        "schema_version": 1,
        "measured_on": identity(spec, info["deployment"]) | {"run": info["run_id"], "name": info["name"]},
        "stages": stages,
        **_all_stages(stages),
        **_saves(rows),
        **_evaluations(rows),
        **_against_prediction(spec, info["deployment"], stages),
    }
    return content | {"digest": digest_json(content)}


def _kept_rows(run: RunDirectory) -> list[dict]:
    """Of the run's history, each with the place that it has among the steps of its attempt."""
    from headway.rundir.metrics import read_chain_rows
    from headway.rundir.segments import current_chain, read_segments

    return read_chain_rows(run, current_chain(read_segments(run))).kept


def _stage(rows: Sequence[dict], name: str) -> dict[str, Any] | None:
    """Tokens per second of the steps of one stage, input wait included; low and high: 10th and 90th percentile."""
    steps = _after_warm_up([row for row in rows if row["kind"] == "step"])
    timed = [(row["targets"], sum(row["split"].values()) / 1e9) for row in steps if row.get("stage") == name and row.get("split")]
    timed = [(tokens, seconds) for tokens, seconds in timed if seconds > 0]
    if len(timed) < LEAST_STEPS:
        return None
    rates = [tokens / seconds for tokens, seconds in timed]
    low, high = _ends(rates)
    return {
        "tokens_per_second": statistics.median(rates),
        "low": low,
        "high": high,
        "step_seconds": statistics.median(seconds for _, seconds in timed),
        "tokens_per_step": round(statistics.median(tokens for tokens, _ in timed)),
        "steps_timed": len(timed),
    }


def _after_warm_up(steps: Sequence[dict]) -> list[dict]:
    """Without the first steps of every attempt."""
    seen: dict[int, int] = {}
    kept = []
    for row in steps:
        seen[row["segment"]] = seen.get(row["segment"], 0) + 1
        if seen[row["segment"]] > WARM_UP_STEPS:
            kept.append(row)
    return kept


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """10th and 90th percentile."""
    if len(values) < 2:
        return values[0], values[0]
    deciles = statistics.quantiles(values, n=10, method="inclusive")
    return deciles[0], deciles[-1]


def _all_stages(stages: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The mean rate over the steps that were timed, as the live measurement has it."""
    steps = sum(stage["steps_timed"] for stage in stages.values())

    def mean(key: str) -> float:
        return sum(stage[key] * stage["steps_timed"] for stage in stages.values()) / steps

    return {key: mean(key) for key in ("tokens_per_second", "low", "high")} | {"steps_timed": steps}


def _saves(rows: Sequence[dict]) -> dict[str, Any]:
    """Seconds that training stood still for a save: until the commit, and for the read-back of retention after it."""
    found = [row for row in rows if row["kind"] == "save" and isinstance(row.get("blocking_ns"), int)]
    seconds = [(row["blocking_ns"] + (row.get("retention_ns") or 0)) / 1e9 for row in found]
    if not seconds:
        return {}
    sizes = [row["bytes"] for row in found if isinstance(row.get("bytes"), int)]
    size = {"bytes_per_save": sizes[-1]} if sizes else {}
    return {
        "seconds_per_save": statistics.median(seconds),
        "save_range": list(_ends(seconds)),
        "saves_timed": len(seconds),
        **size,
    }


def _evaluations(rows: Sequence[dict]) -> dict[str, Any]:
    """Seconds of an evaluation over all sources, and the held-out tokens per second in it."""
    found = [row for row in rows if row["kind"] == "evaluation" and row.get("split")]
    seconds = [sum(row["split"].values()) / 1e9 for row in found]
    if not seconds:
        return {}
    tokens = [
        sum(row["targets"].values()) / s for row, s in zip(found, seconds) if isinstance(row.get("targets"), dict) and s > 0
    ]
    rate = {"evaluation_tokens_per_second": statistics.median(tokens)} if tokens else {}
    timed = {"seconds_per_evaluation": statistics.median(seconds), "evaluation_range": list(_ends(seconds))}
    return timed | {"evaluations_timed": len(seconds)} | rate


def _against_prediction(spec: Spec, deployment: dict[str, Any], stages: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Measured / predicted seconds, where the chip is known: what carries over to other models and layouts of it."""
    from headway.plan.rates import phases_of, predict, stated_layouts

    try:
        where = stored_deployment(deployment)
        predicted = predict(spec, where, stated_layouts(spec, where))
    except HeadwayError:
        return {}
    ratios = []
    for one, phase in zip(predicted, phases_of(spec)):
        measured = stages.get(phase.stage.name)
        if measured is not None and measured["tokens_per_step"] == phase.batch_sequences * phase.stage.sequence_length:
            ratios.append(measured["step_seconds"] / one.time.seconds)
    return {"measured_over_predicted": statistics.median(ratios)} if ratios else {}


def stored_deployment(plain: dict[str, Any]) -> Deployment:
    """The deployment that ``Deployment.resolved`` gave; durations lost their unit there and get it back."""
    import copy

    from pydantic import ValidationError

    from headway.recipe.deployment import Deployment

    values = copy.deepcopy(plain)
    for _ in range(2):
        try:
            return Deployment.model_validate(values)
        except ValidationError as error:
            for found in error.errors():
                *path, last = found["loc"]
                here: Any = values
                for part in path:
                    here = here[part]
                if isinstance(here.get(last), int | float):
                    here[last] = f"{here[last]!r}s"
    raise RunError("the stored deployment cannot be read", "it was written by another version", "plan without it")


def identity(spec: Spec, deployment: dict[str, Any]) -> dict[str, Any]:
    """What a measurement depends on: machine, model, layouts, lengths."""
    accelerator = deployment.get("accelerator") or {}
    return {
        "device": str(accelerator.get("kind", "cpu")),
        "devices": int(deployment.get("nodes", 1)) * int(deployment.get("processes_per_node", 1)),
        "threads": deployment.get("threads"),
        "micro_batch": deployment.get("micro_batch"),
        "layouts": deployment.get("layouts") or {},
        "model": section_digests(spec)["model"],
        "compute": spec.precision.compute,
        "parameters": count_parameters(spec.model).stored,
        "flops_per_token": {s.name: flops_per_token(spec.model, s.sequence_length, Convention.CAUSAL) for s in spec.stages},
        "sequences": {stage.name: stage.sequence_length for stage in spec.stages},
    }


# --- files --------------------------------------------------------------------------------------------------------------


def write_calibration(path: Path, calibration: dict[str, Any]) -> None:
    write_json(path, calibration)


def load_calibration(path: Path) -> dict[str, Any]:
    """A calibration file, proven to be what was measured: its digest is of its content."""
    try:
        value = read_json(path, "calibration")
    except RunError as error:
        raise ConfigError(error.problems) from None
    if not isinstance(value, dict) or value.get("kind") != "calibration" or value.get("schema_version") != 1:
        rule = "a calibration is a JSON file of kind 'calibration' and schema_version 1"
        raise ConfigError(f"{path} is no calibration", rule, "write one with headway plan calibrate RUN")
    content = {key: item for key, item in value.items() if key != "digest"}
    if value.get("digest") != digest_json(content):
        rule = "its digest is of its content: a measurement is never edited"
        raise ConfigError(f"{path} was changed after it was written", rule, "write it anew with headway plan calibrate RUN")
    return value

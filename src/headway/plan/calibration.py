"""Calibrations: what was measured of a run's real steps, saves and evaluations, as a file with a digest.

    RUN --calibration_of_run--> {kind, digest, measured_on, stages, seconds_per_save, ...} --write--> FILE
    FILE --load_calibration--> the same, unchanged since          --calibrated.py--> rates for a Spec on a Deployment

The short live measurement of ``--calibrate`` has no ``measured_on``: it was taken here, for this very spec.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.base.digests import digest_json
from headway.base.errors import ConfigError, HeadwayError, RunError
from headway.base.files import read_json, write_json
from headway.base.plain import from_plain
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
    from headway.rundir.segments import deployment_of

    spec, info, deployment = run.spec(), run.info(), deployment_of(run)
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
        "measured_on": identity(spec, deployment) | {"run": info["run_id"], "name": info["name"]},
        "stages": stages,
        **_saves(rows),
        **_evaluations(rows),
        **_against_prediction(spec, deployment, stages),
    }
    return content | {"digest": digest_json(content)}


def _kept_rows(run: RunDirectory) -> list[dict]:
    """Of the run's history, as far as it had as many processes as it has now."""
    from headway.rundir.metrics import read_chain_rows
    from headway.rundir.segments import current_chain, read_segments

    chain = current_chain(read_segments(run))
    alike = {segment.id for segment in chain if segment.layout.get("world", 1) == chain[-1].layout.get("world", 1)}
    return [row for row in read_chain_rows(run, chain).kept if row["segment"] in alike]


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


def _saves(rows: Sequence[dict]) -> dict[str, Any]:
    """Seconds that training stood still for a save: for the copy; in older runs until the commit and the read-back after it."""
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
    """Measured / predicted seconds: what carries over to other models and layouts of a chip; or why there is none."""
    from headway.plan.rates import phases_of, predict, stated_layouts

    try:
        where = stored_deployment(deployment)
        predicted = predict(spec, where, stated_layouts(spec, where))
    except HeadwayError as error:
        return {"not_predicted": error.problems[0].seen}
    ratios = []
    for one, phase in zip(predicted, phases_of(spec)):
        measured = stages.get(phase.stage.name)
        if measured is not None and measured["tokens_per_step"] == phase.batch_sequences * phase.stage.sequence_length:
            ratios.append(measured["step_seconds"] / one.time.seconds)
    if ratios:
        return {"measured_over_predicted": statistics.median(ratios)}
    if not predicted:
        return {"not_predicted": f"{where.accelerator.kind} is no chip of the table"}
    return {"not_predicted": "no batch that was measured is one of the recipe's"}


def stored_deployment(plain: dict[str, Any]) -> Deployment:
    """The deployment that ``Deployment.resolved`` gave."""
    from pydantic import ValidationError

    from headway.recipe.deployment import Deployment

    try:
        return Deployment.of_resolved(plain)
    except ValidationError as error:
        what = "; ".join(f"{'.'.join(map(str, found['loc']))}: {found['msg']}" for found in error.errors()[:3])
        seen = f"the stored deployment cannot be read: {what}"
        raise RunError(seen, "it was written by another version", "plan without it") from None


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


@dataclass(frozen=True, kw_only=True)
class MeasuredOn:
    """What ``identity`` says, and of which run."""

    device: str
    devices: int
    threads: int | None
    micro_batch: int | None
    layouts: dict[str, dict[str, Any]]
    model: str
    compute: str
    parameters: int
    flops_per_token: dict[str, float]
    sequences: dict[str, int]
    run: str
    name: str


@dataclass(frozen=True, kw_only=True)
class MeasuredStage:
    """What ``_stage`` says of one."""

    tokens_per_second: float
    low: float
    high: float
    step_seconds: float
    tokens_per_step: int
    steps_timed: int


@dataclass(frozen=True, kw_only=True)
class CalibrationFile:
    """Keys and types of the file; values stay as they were read."""

    kind: str
    schema_version: int
    digest: str
    measured_on: MeasuredOn
    stages: dict[str, MeasuredStage]
    seconds_per_save: float | None = None
    save_range: tuple[float, ...] = ()
    saves_timed: int | None = None
    bytes_per_save: int | None = None
    seconds_per_evaluation: float | None = None
    evaluation_range: tuple[float, ...] = ()
    evaluations_timed: int | None = None
    evaluation_tokens_per_second: float | None = None
    measured_over_predicted: float | None = None
    not_predicted: str | None = None


LARGEST = 1e30  # no rate, time or count of FLOPs comes near it
ANEW = "write it anew with headway plan calibrate RUN"


def load_calibration(path: Path) -> dict[str, Any]:
    """A calibration file, proven to be what was measured: its keys and types, its numbers, its digest."""
    try:
        value = read_json(path, "calibration")
        if not isinstance(value, dict) or value.get("kind") != "calibration" or value.get("schema_version") != 1:
            rule = "a calibration is a JSON file of kind 'calibration' and schema_version 1"
            raise ConfigError(f"{path} is no calibration", rule, "write one with headway plan calibrate RUN")
        read = from_plain(CalibrationFile, value, "calibration")
    except RunError as error:
        raise ConfigError([replace(each, where=str(path), way_out=each.way_out or ANEW) for each in error.problems]) from None
    if not _unchanged(value, path):
        rule = "its digest is of its content: a measurement is never edited"
        raise ConfigError(f"{path} was changed after it was written", rule, ANEW)
    if wrong := list(_impossible(read)):
        raise ConfigError(f"{path} holds what no run measures: {'; '.join(wrong)}", "rates and times are positive numbers", ANEW)
    return value


def _unchanged(value: dict[str, Any], path: Path) -> bool:
    try:
        return value["digest"] == digest_json({key: item for key, item in value.items() if key != "digest"})
    except ValueError:
        seen = f"{path} holds what no run measures: a number that is not finite, or broken text"
        raise ConfigError(seen, "rates and times are positive numbers", ANEW) from None


def _impossible(read: CalibrationFile) -> Iterator[str]:
    """Numbers that cannot have been measured."""
    if not read.stages:
        yield "no stages"
    for name, stage in read.stages.items():
        yield from (f"stages.{name}.{key} = {value}" for key, value in vars(stage).items() if not 0 < value < LARGEST)
        if not stage.low <= stage.tokens_per_second <= stage.high:
            yield f"stages.{name}: low, tokens_per_second and high are not in order"
        if name not in read.measured_on.flops_per_token:
            yield f"measured_on.flops_per_token without {name}"
    yield from (f"flops_per_token of {name} = {x}" for name, x in read.measured_on.flops_per_token.items() if not 0 < x < LARGEST)
    yield from (f"{key} = {x}" for key, x in vars(read).items() if isinstance(x, float) and not 0 < x < LARGEST)
    for key, middle in (("save_range", read.seconds_per_save), ("evaluation_range", read.seconds_per_evaluation)):
        ends = getattr(read, key)
        if (middle is not None or ends) and not (len(ends) == 2 and middle is not None and 0 <= ends[0] <= middle <= ends[1]):
            yield f"{key} = {list(ends)} about {middle}"

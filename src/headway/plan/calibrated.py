"""What of a calibration holds for another plan: same machine, other model, other layout or chip.

    same machine, model, layout     everything holds
    same machine, another model     saves by their bytes per second; steps by their FLOP per second, in a wide range
    another layout or chip          steps by measured / predicted, where the model of a step can predict both; else nothing

The short live measurement of ``--calibrate`` has no ``measured_on``: it was taken here, for this very spec, at the length of
the step in its middle. Stages of another length take their FLOPs.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headway.base.digests import short
from headway.base.errors import ConfigError
from headway.formulas.flops import Convention, flops_per_token
from headway.formulas.quantity import Input, Quantity, estimate
from headway.plan.calibration import identity
from headway.plan.rates import plain, predicted_pace
from headway.recipe.schedules import Schedule
from headway.recipe.spec import Spec

if TYPE_CHECKING:
    from headway.plan.facts import PlanFacts
    from headway.plan.rates import Predicted

MEASURED = "calibration on this machine"
DRIFT = 0.15
"""A few seconds of measurement do not see how a shared machine drifts over minutes: the range is never narrower than this.
Two quiet runs of the demo came out 7 % below and 4 % above their own measurement."""
RUN_DRIFT = 0.1  # a whole run has seen the drift of its own hours, not that of the next
RANGE = "; range assumed"
USUAL_SPREAD = {"save_seconds": (0.5, 2.0), "evaluation_seconds": (0.7, 1.5)}
DIGEST_SPREAD = (0.7, 2.0)
OTHER_MODEL_SPREAD = (0.5, 1.6)
"""The same FLOP/s with another model: shapes differ, and small products run slower than large ones."""


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """What of a calibration holds for a plan. ``rates``: by the name of a stage, or of a phase where phases have their own;
    ``mean``: of the run, where it was measured as such."""

    words: str
    rates: Mapping[str, Quantity]
    mean: Quantity | None = None
    save: Quantity | None = None
    evaluation: Quantity | None = None
    digest: Quantity | None = None
    notes: tuple[str, ...] = ()


def apply_calibration(calibration: dict[str, Any], facts: PlanFacts) -> Calibrated:
    """Everything that carries over to the plan's spec on its deployment; ConfigError where nothing does."""
    spec = facts.spec
    if "measured_on" not in calibration:
        return _live(calibration, spec)
    there, here = calibration["measured_on"], identity(spec, facts.deployment.resolved())
    source = f"calibration {short(calibration.get('digest', ''))}, measured on {there.get('name', 'another run')}"
    same_machine = _equal(there, here, "device", "devices", "threads")
    same_layout = _equal(there, here, "layouts", "micro_batch")
    if same_machine and same_layout and _equal(there, here, "model", "compute"):
        return _as_measured(calibration, spec, source)
    if "measured_over_predicted" in calibration and facts.predicted and calibration["measured_on"]["device"] != "cpu":
        return _by_ratio(calibration, facts.predicted, source, _differences(there, here))
    if same_machine and same_layout:
        return _by_flops(calibration, facts, source)
    raise ConfigError(
        f"nothing of the {source} holds here: {_differences(there, here)}",
        "steps carry over to the same machine and layout, or by measured / predicted where the model of a step knows both chips",
        "measure here with --calibrate, or plan without a calibration",
    )


def _equal(there: Mapping[str, Any], here: Mapping[str, Any], *keys: str) -> bool:
    return all(there.get(key) == here.get(key) for key in keys)


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """In words."""
    said = [
        f"{key} {there.get(key)}, not {here.get(key)}"
        for key in ("device", "devices", "threads", "compute", "micro_batch")
        if there.get(key) != here.get(key)
    ]
    said += ["another layout"] if there.get("layouts") != here.get("layouts") else []
    said += ["another model"] if there.get("model") != here.get("model") else []
    return "; ".join(said) or "nothing differs"


def _live(calibration: dict[str, Any], spec: Spec) -> Calibrated:
    """Measured here a moment ago: one rate for all stages of the length that was timed."""
    schedule = Schedule(spec)
    timed = spec.stages[schedule.place(schedule.total_steps // 2).stage]  # as ``train.calibrate`` chooses its batch
    others = [stage.name for stage in spec.stages if stage.sequence_length != timed.sequence_length]
    name = f"tokens_per_second_{plain(timed.name)}" if others else "tokens_per_second"
    rate = measured_rate(calibration, name, DRIFT, MEASURED)
    flops = {timed.name: flops_per_token(spec.model, timed.sequence_length, Convention.CAUSAL)}
    told = {"stages": {timed.name: calibration}, "measured_on": {"flops_per_token": flops}}
    rates = {s.name: _rate_by_flops(told, spec, s.name, MEASURED) if s.name in others else rate for s in spec.stages}
    made = Calibrated(words="measured on this machine", rates=rates, mean=None if others else rate, notes=_unmeasured(others))
    return with_rest(made, calibration, spec, MEASURED)


def _unmeasured(stages: Sequence[str]) -> tuple[str, ...]:
    return (f"not measured, so taken from FLOPs: {', '.join(stages)}",) if stages else ()


def measured_rate(measured: Mapping[str, Any], name: str, drift: float, source: str) -> Quantity:
    rate = float(measured["tokens_per_second"])
    low = min(rate * (1 - drift), float(measured.get("low", rate)))
    high = max(rate * (1 + drift), float(measured.get("high", rate)))
    timed = {"steps_timed": measured.get("steps_timed", "not recorded")}
    return Quantity(name, rate, "tokens/s", "measured", timed, source, low, high)


def with_rest(rates: Calibrated, calibration: Mapping[str, Any], spec: Spec, source: str) -> Calibrated:
    """With saves, evaluations and digests of the state, as measured."""
    save = evaluation = digest = None
    if calibration.get("seconds_per_save") is not None:
        save = _timed("save_seconds", calibration, "seconds_per_save", "save_range", source)
    if "seconds_per_evaluation" in calibration:
        evaluation = _timed("evaluation_seconds", calibration, "seconds_per_evaluation", "evaluation_range", source)
    elif calibration.get("evaluation_tokens_per_second"):
        evaluation = _evaluation_at(float(calibration["evaluation_tokens_per_second"]), spec, source)
    if "digest_seconds" in calibration:
        seconds = float(calibration["digest_seconds"])
        digest = estimate("digest_seconds", seconds, "seconds", "measured", {}, source + RANGE, DIGEST_SPREAD)
    return replace(rates, save=save, evaluation=evaluation, digest=digest)


def _timed(name: str, calibration: Mapping[str, Any], key: str, range_key: str, source: str) -> Quantity:
    """A duration as measured: within the range that it had, or by the usual spread of such things."""
    value = float(calibration[key])
    if range_key not in calibration:
        return estimate(name, value, "seconds", "measured", {}, source + RANGE, USUAL_SPREAD[name])
    low, high = (float(bound) for bound in calibration[range_key])
    low, high = min(low, value * (1 - DRIFT)), max(high, value * (1 + DRIFT))
    return Quantity(name, value, "seconds", "measured", {}, source, low, high)


def _evaluation_at(rate: float, spec: Spec, source: str) -> Quantity:
    name, tokens = "evaluation_seconds", spec.evaluation.tokens_per_source * len(spec.sources)
    inputs: dict[str, Input] = {"tokens": tokens, "evaluation_tokens_per_second": rate}
    formula = "tokens / evaluation_tokens_per_second"
    return estimate(name, tokens / rate, "seconds", formula, inputs, source + RANGE, USUAL_SPREAD[name])


def _as_measured(calibration: dict[str, Any], spec: Spec, source: str) -> Calibrated:
    """The same run on the same machine; a stage that was not reached takes its rate from FLOPs."""
    stages, sequences = calibration["stages"], calibration["measured_on"]["sequences"]
    rates, unmeasured = {}, []
    for stage in spec.stages:
        if stage.name in stages and sequences.get(stage.name) == stage.sequence_length:
            rates[stage.name] = measured_rate(stages[stage.name], f"tokens_per_second_{plain(stage.name)}", RUN_DRIFT, source)
        else:
            unmeasured.append(stage.name)
            rates[stage.name] = _rate_by_flops(calibration, spec, stage.name, source)
    made = Calibrated(words=source, rates=rates, notes=_unmeasured(unmeasured))
    return with_rest(made, calibration, spec, source)


def _rate_by_flops(calibration: Mapping[str, Any], spec: Spec, stage: str, source: str) -> Quantity:
    """At the FLOP/s that were measured: tokens/s of the other model or length."""
    per_token = calibration["measured_on"]["flops_per_token"]
    speeds = [timed["tokens_per_second"] * per_token[name] for name, timed in calibration["stages"].items()]
    speed = statistics.median(speeds)
    length = next(s.sequence_length for s in spec.stages if s.name == stage)
    flops = flops_per_token(spec.model, length, Convention.CAUSAL)
    inputs: dict[str, Input] = {"measured_flops_per_second": speed, "flops_per_token": flops}
    formula = "measured_flops_per_second / flops_per_token, causal"
    name = f"tokens_per_second_{plain(stage)}"
    return estimate(name, speed / flops, "tokens/s", formula, inputs, source + RANGE, OTHER_MODEL_SPREAD)


def _by_flops(calibration: dict[str, Any], facts: PlanFacts, source: str) -> Calibrated:
    """The same machine with another model."""
    spec, size = facts.spec, facts.checkpoint_size
    rates = {stage.name: _rate_by_flops(calibration, spec, stage.name, source) for stage in spec.stages}
    save = None
    if calibration.get("seconds_per_save") and calibration.get("bytes_per_save"):
        speed = calibration["bytes_per_save"] / calibration["seconds_per_save"]
        inputs: dict[str, Input] = {"bytes": size, "write_speed": speed}
        name, spread = "save_seconds", USUAL_SPREAD["save_seconds"]
        save = estimate(name, size.number() / speed, "seconds", "bytes / write_speed", inputs, source + RANGE, spread)
    note = (
        f"the {source} is of another model: its FLOP per second and its write speed are taken over, in a wide range; "
        "evaluations are not"
    )
    return Calibrated(words=f"FLOP/s of the {source}", rates=rates, save=save, notes=(note,))


def _by_ratio(calibration: dict[str, Any], predicted: Sequence[Predicted], source: str, differences: str) -> Calibrated:
    """Another model, layout or cluster: the prediction, corrected by how the measured run stood to its own."""
    ratio = float(calibration["measured_over_predicted"])
    rates: dict[str, Quantity] = {}
    for one in predicted:
        tokens, seconds = one.work.tokens, predicted_pace(one, "predicted_step_seconds")
        inputs: dict[str, Input] = {"batch_tokens": tokens, "ratio": ratio, "predicted": seconds}
        low, value, high = (tokens / (ratio * each) for each in (seconds.at("high"), seconds.number(), seconds.at("low")))
        name, formula = f"tokens_per_second_{one.phase.name}", "batch_tokens / (ratio predicted)"
        rates[one.phase.name] = Quantity(name, value, "tokens/s", formula, inputs, source, low, high)
    note = (
        f"the {source} differs ({differences}): only its ratio of measured to predicted step time, {ratio:.3g}, is taken over; "
        "saves and evaluations are not"
    )
    return Calibrated(words=f"prediction x {ratio:.3g}, by the {source}", rates=rates, notes=(note,))

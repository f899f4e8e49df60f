"""What reports print and a plan has no line for: utilisation, rates and step times stage by stage, device hours.

A report's MFU is of one stage at its largest batch, by one convention; so is this. Every stage gives

    stage_mfu_causal_main     stage_mfu_full_main     stage_mfu_6n_main     stage_tokens_per_second_main
    stage_tokens_per_second_per_device_main           stage_flops_per_second_per_device_main (causal)
"""

from __future__ import annotations

from headway.formulas.flops import Convention, flops_per_token
from headway.formulas.quantity import Input, Quantity
from headway.formulas.recompute import mfu
from headway.plan.facts import PlanFacts
from headway.plan.rates import Pace

SOURCE = "the plan's step time"


def measures(facts: PlanFacts) -> dict[str, Quantity]:
    """By name; empty where no step time is known."""
    made = [quantity for pace in _largest(facts) for quantity in _of_stage(facts, pace)]
    time = facts.training_seconds
    if time.value is not None:
        devices = facts.deployment.world
        low, hours, high = (each * devices / 3600 for each in (time.at("low"), time.number(), time.at("high")))
        inputs: dict[str, Input] = {"devices": devices, "time": time}
        formula = "devices time / 3600, no failures"
        made.append(Quantity("training_device_hours", hours, "h", formula, inputs, time.source, low, high))
    return {quantity.name: quantity for quantity in made}


def _largest(facts: PlanFacts) -> list[Pace]:
    """The last phase of every stage: it goes by the stage's name."""
    return list({pace.stage: pace for pace in facts.paces}.values())


def _of_stage(facts: PlanFacts, pace: Pace) -> list[Quantity]:
    devices, peak = facts.deployment.world, facts.peak_flops_per_second
    rate = _turned(f"stage_tokens_per_second_{pace.name}", pace.batch_tokens, pace.seconds, "tokens/s", "batch / step")
    each, tokens = f"stage_tokens_per_second_per_device_{pace.name}", pace.batch_tokens / devices
    made = [rate, _turned(each, tokens, pace.seconds, "tokens/s", "batch / devices / step")]
    for convention in Convention:
        flops = flops_per_token(facts.spec.model, pace.sequence_length, convention)
        words = f"FLOPs of the step ({convention.value}) / devices"
        if convention is Convention.CAUSAL:
            name = f"stage_flops_per_second_per_device_{pace.name}"
            made.append(_turned(name, tokens * flops, pace.seconds, "FLOP/s", f"{words} / step"))
        if peak is not None:
            name = f"stage_mfu_{convention.value.casefold()}_{pace.name}"
            share = mfu(tokens, flops_per_token=flops, peak_flops_per_second=peak)  # of a step of one second
            made.append(_turned(name, share, pace.seconds, "share", f"{words} / peak / step"))
    return made


def _turned(name: str, amount: float, seconds: Quantity, unit: str, formula: str) -> Quantity:
    """``amount`` per second of a step, with the range turned round."""
    low = None if seconds.high is None else amount / seconds.high
    high = None if seconds.low is None else amount / seconds.low
    return Quantity(name, amount / seconds.number(), unit, formula, {"step": seconds}, SOURCE, low, high)

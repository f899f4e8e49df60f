"""The first screen: the lines that everybody looks for, made of the plan's own quantities. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headway.formulas.quantity import Quantity
from headway.plan.plan import Line, Plan

Known = Mapping[str, Quantity]


def summary_of(plan: Plan) -> Iterator[Line]:
    """Lines that have something to say."""
    known = plan.known()
    for label, parts in LINES:
        made = [(name, text) for name, pattern in parts if (text := _said(known.get(name), pattern)) is not None]
        if made:
            yield Line(label, ", ".join(text for _, text in made), tuple(name for name, _ in made))
        elif label == "time" and _is_unknown(known.get("tokens_per_second")):
            yield Line(label, NO_RATE, ("tokens_per_second",))


NO_RATE = "unknown: --calibrate measures this machine, or state accelerator.peak_flops and utilisation"


def _is_unknown(quantity: Quantity | None) -> bool:
    return quantity is not None and quantity.value is None


def _said(quantity: Quantity | None, pattern: str) -> str | None:
    """``{}`` is the shown value without its range, ``{=}`` with it. None: not in this plan, or unknown."""
    if quantity is None or quantity.value is None:
        return None
    return pattern.replace("{=}", quantity.shown()).replace("{}", without_range(quantity))


def without_range(quantity: Quantity) -> str:
    return Quantity(quantity.name, quantity.value, quantity.unit, quantity.formula).shown()


Part = tuple[str, str]
LINES: tuple[tuple[str, tuple[Part, ...]], ...] = (
    ("model", (("parameters", "{}"), ("active_parameters", "{} active per token"), ("model", "{}"))),
    ("data", (("tokens", "{}"), ("tokens_per_parameter", "{} per parameter"), ("sequence_lengths", "sequences of {}"))),
    ("compute", (("flops_6n", "{} (6 N D)"), ("flops_causal", "{} with causal attention"))),
    ("devices", (("processes", "{}"), ("accelerator", "{}"))),
    ("rate", (("tokens_per_second", "{=}"), ("rate_from", "{}"))),
    ("utilisation", (("mfu_causal", "MFU {=}, causal attention counted"), ("mfu_6n", "{} by 6 N"))),
    ("predicted", (("predicted_training_seconds", "the model of a step says {=}"), ("predicted_mfu_causal", "MFU {=}"))),
    ("steps", (("steps", "{}"), ("step_seconds", "{=} each on average"))),
    (
        "time",
        (
            ("training_seconds", "training {=}"),
            ("wall_seconds", "with saves, evaluations and failures {=}"),
            ("end_with_failures", "with failures: {}"),
        ),
    ),
    ("work", (("predicted_seconds", "{=} with saves and evaluations, without failures"),)),
    ("device time", (("gpu_hours", "{=}"), ("cost", "cost {=}"), ("energy_kwh", "{=}"))),
    (
        "memory",
        (("memory_bytes", "{=} per process"), ("rank_memory", "{=} on the fullest rank"), ("device_memory_bytes", "of {}")),
    ),
    ("checkpoints", (("checkpoint_bytes", "{} each"), ("checkpoints", "{}"), ("checkpoint_interval", "every {}"))),
    ("loss", (("forecast_loss", "{=} at the end"),)),
)
"""Label, then name and words of each part. A quantity that a plan does not have is left out."""

"""What a FLOP rate counts, and over what time. Four kinds; one becomes another only with the factor that parts them, once.

                     healthy steps only        x goodput       the whole window
    model FLOPs      model, healthy         ------------->     model, end-to-end        what tokens are bought with
      ^ / recompute      ^                                         ^
    hardware FLOPs   hardware, healthy      ------------->     hardware, end-to-end

``recompute``: executed over useful FLOPs, 8/6 where every block is computed again. ``goodput``: useful over all time, with
failures, replay, restarts and saves. A factor that a rate already holds is refused, not ignored: it would count twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from headway.base.errors import ConfigError


class Counts(StrEnum):
    MODEL = "model"  # useful arithmetic: what MFU counts
    HARDWARE = "hardware"  # everything that was executed, recomputation included: HFU


class Window(StrEnum):
    HEALTHY = "healthy"  # over steps that went well
    END_TO_END = "end-to-end"  # over all time: failures, replay, restarts and saves are in it


@dataclass(frozen=True, kw_only=True)
class Rate:
    """FLOP/s of one device, and what they mean."""

    flops_per_second: float
    counts: Counts
    window: Window

    def __post_init__(self) -> None:
        if not (math.isfinite(self.flops_per_second) and self.flops_per_second > 0):
            raise ConfigError(f"a rate of {self.flops_per_second:g} FLOP/s", "a rate is above zero", "check it")

    @property
    def kind(self) -> str:
        return f"{self.counts}, {self.window}"


def convert(rate: Rate, *, counts: Counts, window: Window, recompute: float | None = None, goodput: float | None = None) -> Rate:
    """The same work as a rate of another kind. ConfigError for a factor that is missing, that counts twice, or cannot be."""
    check_factors(rate, counts=counts, window=window, recompute=recompute, goodput=goodput)
    value = rate.flops_per_second
    if counts is not rate.counts and recompute is not None:
        value = value / recompute if counts is Counts.MODEL else value * recompute
    if window is not rate.window and goodput is not None:
        value = value * goodput if window is Window.END_TO_END else value / goodput
    return Rate(flops_per_second=value, counts=counts, window=window)


def model_end_to_end(rate: Rate, recompute: float | None = None, goodput: float | None = None) -> Rate:
    """What tokens are bought with."""
    return convert(rate, counts=Counts.MODEL, window=Window.END_TO_END, recompute=recompute, goodput=goodput)


def check_factors(rate: Rate, *, counts: Counts, window: Window, recompute: float | None, goodput: float | None) -> None:
    """Refuse what ``convert`` could not answer for."""
    article = "an" if rate.window is Window.END_TO_END else "a"
    if recompute is not None and not 1 <= recompute <= 4:
        raise ConfigError(
            f"a recompute factor of {recompute:g}", "executed over useful FLOPs: 1 for none, 8/6 for all blocks", ""
        )
    if goodput is not None and not 0 < goodput <= 1:
        raise ConfigError(f"a goodput of {goodput:g}", "it is a share of all time, above 0 and at most 1", "")
    if counts is rate.counts and recompute is not None:
        raise ConfigError(
            f"recomputation is charged on a {rate.counts} rate, which is to stay one",
            "a model rate counts useful FLOPs: the time that recomputation takes is already in it"
            if counts is Counts.MODEL
            else "a hardware rate counts the recomputed FLOPs already",
            "leave recompute out, or declare the rate as hardware if executed FLOPs were counted",
        )
    if window is rate.window and goodput is not None:
        raise ConfigError(
            f"failures are discounted from {article} {rate.window} rate, which is to stay one",
            "an end-to-end rate already holds failures, replay, restarts and saves; a healthy one none of them",
            "leave goodput out, or declare the rate as healthy if only good steps were timed",
        )
    if counts is not rate.counts and recompute is None:
        raise ConfigError(
            f"a {rate.counts} rate cannot become a {counts} rate",
            "executed over useful FLOPs is not given",
            "give recompute, such as 1.33",
        )
    if window is not rate.window and goodput is None:
        raise ConfigError(
            f"{article} {rate.window} rate cannot become {window}",
            "the share of time that is useful is not given",
            'give goodput, such as "92 %", or an end-to-end rate',
        )

r"""The spike detector: which steps stand out of the ones before them, by loss or by gradient norm.

    loss      4.1  4.0  4.2  ...  4.1  9.7  4.0        logarithms; level of the last LEVEL_STEPS, spread of WINDOW_STEPS
    judged     -    -    -        ok  spike  ok        once LEAST_STEPS were seen; one-sided: a low value is no spike
    learned    +    +    +        +          +         a spike never raises the bar for the next step (L10)

The level is a median. The spread is 1.4826 times the median size of the differences between neighbours, over sqrt(2): the
standard deviation where values are normal, however steeply the loss falls meanwhile (its deviations from one median of the first
hundred steps would hide a loss that triples). It is no less than a floor: after a quiet stretch a small rise is no spike.
Logarithms make the rule the same for any scale.

Values that are not finite are no matter of statistics: such a step is neither judged nor learned (L9). Steps of another
``regime`` (a stage, a mixture, a spike that a person accepted) are other matter: the statistics start anew.

Pure: what it says follows from the values, so it goes on from a checkpoint as if it had not been interrupted.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from headway.base.plain import from_plain

WINDOW_STEPS, LEAST_STEPS, LEVEL_STEPS = 128, 64, 32
LEAST_SPREAD = {"loss": 0.01, "grad_norm": 0.15}
"""Of the logarithms. At ten of these a loss lies a tenth above its median, a gradient norm at four and a half times it."""
DEVIATION = 1.4826
"""A normal distribution's standard deviation over the median size of its values."""


@dataclass(frozen=True)
class Reading:
    """How a step stands to the ones before it, in robust standard deviations above their level. None: it was not judged."""

    loss: float | None = None
    grad_norm: float | None = None
    usual_loss: float | None = None  # the level
    usual_grad_norm: float | None = None

    def exceeds(self, threshold: float) -> bool:
        return any(score is not None and score > threshold for score in (self.loss, self.grad_norm))


@dataclass(frozen=True)
class SpikeState:
    """What a checkpoint holds: the logarithms in the window, oldest first, and how many steps in a row were flagged last."""

    regime: str = ""
    loss: tuple[float, ...] = ()
    grad_norm: tuple[float, ...] = ()
    in_a_row: int = 0


class SpikeDetector:
    """``judge`` a step, then ``learn`` it if it was sound, or ``flag`` it."""

    def __init__(self, state: SpikeState | None = None):
        state = state or SpikeState()
        self._regime = state.regime
        self._loss = deque(state.loss, WINDOW_STEPS)
        self._grad_norm = deque(state.grad_norm, WINDOW_STEPS)
        self.in_a_row = state.in_a_row

    @staticmethod
    def restored(saved: Any) -> SpikeDetector:
        """From a checkpoint; one of an earlier version has no such state. RunError where it is something else."""
        return SpikeDetector(None if saved is None else from_plain(SpikeState, saved, "spike statistics"))

    def to_json(self) -> dict[str, Any]:
        return asdict(SpikeState(self._regime, tuple(self._loss), tuple(self._grad_norm), self.in_a_row))

    def judge(self, regime: str, loss: float, grad_norm: float) -> Reading:
        """Changes nothing but to forget another regime."""
        if regime != self._regime:
            self._regime, self.in_a_row = regime, 0
            self._loss.clear()
            self._grad_norm.clear()
        if not _sound(loss, grad_norm) or len(self._loss) < LEAST_STEPS:
            return Reading()
        usual_loss, usual_norm = _level(self._loss), _level(self._grad_norm)
        return Reading(
            loss=(math.log(loss) - usual_loss) / max(_spread(self._loss), LEAST_SPREAD["loss"]),
            grad_norm=(math.log(grad_norm) - usual_norm) / max(_spread(self._grad_norm), LEAST_SPREAD["grad_norm"]),
            usual_loss=math.exp(usual_loss),
            usual_grad_norm=math.exp(usual_norm),
        )

    def learn(self, loss: float, grad_norm: float) -> None:
        """Of a step that was applied and is no spike."""
        self.in_a_row = 0
        if _sound(loss, grad_norm):
            self._loss.append(math.log(loss))
            self._grad_norm.append(math.log(grad_norm))

    def flag(self) -> None:
        """Of a step that is one."""
        self.in_a_row += 1


def reading_words(loss: float, grad_norm: float, reading: Mapping[str, float]) -> str:
    """Of a step that was judged; ``reading``: the fields of a ``Reading``."""
    of = "deviations above the usual"
    return (
        f"a spike: loss {loss:.3f} is {reading['loss']:.1f} {of} {reading['usual_loss']:.3f}, gradient norm {grad_norm:.3g} is "
        f"{reading['grad_norm']:.1f} above {reading['usual_grad_norm']:.3g}"
    )


def _sound(*values: float) -> bool:
    """Finite, and with a logarithm."""
    return all(math.isfinite(value) and value > 0 for value in values)


def _level(window: Sequence[float]) -> float:
    return median(list(window)[-LEVEL_STEPS:])


def _spread(window: Sequence[float]) -> float:
    """Two independent values differ by sqrt(2) times as much as each from its mean, and a slow descent adds next to nothing."""
    return DEVIATION * median(abs(after - before) for before, after in pairwise(window)) / math.sqrt(2)

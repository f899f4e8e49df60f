"""A layout's measurements against those of one process: the largest difference of each kind, its tolerance, and where it is.

    initial weights   0           the same words of the same streams
    loss              1e-6        relative; a sum over the same tokens in another order
    gradients         1e-6        of each parameter, relative to its own norm, with a floor: see ``FLOOR``
    norm              1e-6        before clipping
    moments           2e-6        after one step, as gradients; squares have twice the error
    update            1e-6        of weights after one step, relative to their norm and to ``MOVED`` times how far they moved
    curve             1e-5        losses of all steps

Tolerances are those of float32. In bfloat16 a product's rounding depends on how it is cut: each is ``BFLOAT16`` times as wide.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.train.prove.rank import Measured

TOLERANCES = {
    "initial weights": 0.0,
    "loss": 1e-6,
    "gradients": 1e-6,
    "norm": 1e-6,
    "moments": 2e-6,
    "update": 1e-6,
    "curve": 1e-5,
}
REASONS = {
    "initial weights": "a pure function of seed, name and index: every bit",
    "loss": "the same terms, summed in another order",
    "gradients": "of each parameter, relative to its norm: sums over tokens and ranks in another order",
    "norm": "before clipping, over the whole logical gradients",
    "moments": "after one step, as gradients; squares have twice the error",
    "update": "of weights after one step, relative to their norm and to a thousand times how far they moved",
    "curve": "the largest difference of any step's loss: errors of updates add up",
}
"""Why not 0, by kind."""
BFLOAT16 = 2.0**16
"""It keeps 8 bits of a number where float32 keeps 24: tolerances are as many times wider."""
FLOOR = 1e-3
"""Of a parameter's gradient: this share of the mean norm of all. Smaller ones are what is left of sums of much larger terms, and
their own relative error says nothing."""
MOVED = 1e3
"""AdamW's first update is g / (|g| + epsilon): it blows up the error of the smallest gradients, and only theirs."""
SMALL = 1e-4
"""Of the mean size of a parameter's gradients: an element below it, and not 0, moves by what is left of a cancellation, as far as
any other. It is not compared after the update, only its gradient is."""


@dataclass(frozen=True)
class Finding:
    """One kind of measurement. ``where``: the parameter or step with the largest difference."""

    what: str
    difference: float
    tolerance: float
    where: str

    @property
    def holds(self) -> bool:
        return self.difference <= self.tolerance  # not so of NaN


def compare(found: Measured, reference: Measured, *, wider: float = 1.0) -> list[Finding]:
    """``wider``: what tolerances are multiplied by."""
    floor = FLOOR * sum(float(g.norm()) for g in reference.gradients.values()) / max(1, len(reference.gradients))
    weights, moments = _state(reference, "param/"), _state(reference, "m/", "v/")
    sizes = {name: float(w.norm()) + MOVED * float((w - reference.initial[name]).norm()) for name, w in weights.items()}
    kinds = {
        "initial weights": {name: _apart(found.initial, value, name) for name, value in reference.initial.items()},
        "loss": {"step 1": _relative(found.losses[0], reference.losses[0])},
        "gradients": {name: _distance(found.gradients, g, name, floor) for name, g in reference.gradients.items()},
        "norm": {"step 1": _relative(found.norm, reference.norm)},
        "moments": {name: _distance(found.updated, m, name, _floor(name, floor)) for name, m in moments.items()},
        "update": {name: _moved(found, reference, name, (sizes[name], floor)) for name in weights},
        "curve": {f"step {step}": _relative(*pair) for step, pair in enumerate(zip(found.losses, reference.losses), start=1)},
    }
    return [_worst(what, differences, TOLERANCES[what] * wider) for what, differences in kinds.items()]


def _worst(what: str, differences: dict[str, float], tolerance: float) -> Finding:
    """NaN is worse than anything."""
    where = max(differences, key=lambda name: (differences[name] != differences[name], differences[name]))
    return Finding(what, differences[where], tolerance, where)


def _state(measured: Measured, *kinds: str) -> dict[str, Tensor]:
    """Weights by their own names, moments with their letter."""
    return {name.removeprefix("param/"): value for name, value in measured.updated.items() if name.startswith(kinds)}


def _floor(name: str, of_gradients: float) -> float:
    """Of a moment after the first step: about a twentieth of a gradient, or of its square."""
    return 0.05 * (of_gradients if name.startswith("m/") else of_gradients**2)


def _apart(found: dict[str, Tensor], value: Tensor, name: str) -> float:
    """0 where every bit is the same, else the largest difference; infinite where there is nothing to compare."""
    other = found.get(name)
    if other is None or other.shape != value.shape:
        return float("inf")
    return 0.0 if torch.equal(other, value) else max(float((other - value).abs().max()), 1e-45)


def _distance(found: dict[str, Tensor], value: Tensor, name: str, floor: float) -> float:
    other = found.get(name)
    if other is None or other.shape != value.shape:
        return float("inf")
    size = max(float(value.double().norm()), floor)
    apart = float((other.double() - value.double()).norm())
    return apart / size if size else (0.0 if apart == 0.0 else float("inf"))


def _moved(found: Measured, reference: Measured, name: str, sizes: tuple[float, float]) -> float:
    """Of weights after one step, where their gradients are not ``SMALL``; ``sizes``: of the weight, and the gradients' floor.
    A gradient below that is rounding (that of a key's bias, without rotations, is 0 but for it), and its steps are too.
    """
    size, floor = sizes
    weight, gradient = reference.updated[f"param/{name}"], reference.gradients.get(name)
    other = found.updated.get(f"param/{name}")
    if other is None or other.shape != weight.shape:
        return float("inf")
    if gradient is not None:
        least = torch.inf if gradient.norm() < floor else SMALL * gradient.square().mean().sqrt()
        other = torch.where((gradient != 0) & (gradient.abs() < least), weight, other)
    return _distance({name: other}, weight, name, size)


def _relative(found: float, reference: float) -> float:
    return abs(found - reference) / abs(reference) if reference else abs(found)

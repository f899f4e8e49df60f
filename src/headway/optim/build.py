"""The optimizer of a model: groups by recipe/mup.py, each with its update, and one flat view of their state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from torch import Tensor, nn

from headway.base.errors import ConfigError, RunError
from headway.optim import KINDS
from headway.optim.fused_adamw import FusedAdamW
from headway.optim.groups import Group, group_parameters
from headway.optim.home import BESIDE, Home
from headway.optim.muon import Muon
from headway.optim.parts import WHOLE, Parts
from headway.recipe.roles import parameter_shapes
from headway.recipe.spec import ModelSpec, OptimizerSpec


class Update(Protocol):
    """What changes the parameters of its groups."""

    def __init__(self, groups: Sequence[Group], spec: OptimizerSpec, parts: Parts, home: Home): ...
    def set_rate(self, rate: float) -> None: ...
    def step(self, bad: Tensor | None) -> None: ...
    def moments(self) -> dict[str, dict[nn.Parameter, Tensor]]: ...
    def counts(self) -> list[Tensor]: ...


UPDATES: dict[str, type[Update]] = {"adamw": FusedAdamW, "muon": Muon}


def build_optimizer(model: nn.Module, spec: OptimizerSpec, home: Home = BESIDE) -> Optimizer:
    """Of a whole decoder, at the peak rate (``set_rate`` before each step). ``home``: of moments."""
    named, whole = dict(model.named_parameters()), cast(ModelSpec, model.spec)
    missing = {shape.name for shape in parameter_shapes(whole)} - named.keys()
    assert not missing, f"parameters are missing: {sorted(missing)}"
    return optimizer_of(named, whole, spec, home=home)


def optimizer_of(
    named: dict[str, nn.Parameter], model: ModelSpec, spec: OptimizerSpec, parts: Parts = WHOLE, home: Home = BESIDE
) -> Optimizer:
    """The same of parameters that lie on ranks as ``parts`` says."""
    if spec.kind not in KINDS:
        raise ConfigError(f"unknown optimizer {spec.kind!r}", f"known: {', '.join(KINDS)}")
    return Optimizer(named, group_parameters(named, model, spec), spec, parts, home)


class Optimizer:
    """Every parameter of a model and what updates it. The tensors stay the same ones as long as it lives."""

    def __init__(
        self,
        named: dict[str, nn.Parameter],
        groups: Sequence[Group],
        spec: OptimizerSpec,
        parts: Parts = WHOLE,
        home: Home = BESIDE,
    ):
        self.groups = tuple(groups)
        self._named, self._parts, self._home = named, parts, home
        used = {kind: [group for group in groups if group.terms.update == kind] for kind in UPDATES}
        self._updates = [UPDATES[kind](mine, spec, parts, home) for kind, mine in used.items() if mine]

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """By name; on several ranks the parts that this one updates."""
        return self._named

    def set_rate(self, rate: float) -> None:
        """The learning rate of the next step; each group's is this times its factor."""
        for update in self._updates:
            update.set_rate(rate)

    def step(self, bad: Tensor | None = None) -> None:
        """One update from the gradients. ``bad``: a boolean on the device; where it holds, nothing changes (None: never)."""
        for update in self._updates:
            update.step(bad)

    def zero_grad(self) -> None:
        for parameter in self._named.values():
            parameter.grad = None

    def state_tensors(self) -> dict[str, Tensor]:
        """Everything large that a checkpoint holds: {"param/NAME", "m/NAME", "v/NAME"}. The live tensors, not copies.

        Matrices under Muon have no v, balance parameters have neither.
        """
        self._home.settle()
        logical = self._parts.logical
        flat = {f"param/{name}": logical(name, parameter.detach()) for name, parameter in self._named.items()}
        for kind in ("m", "v"):
            moments = {p: moment for update in self._updates for p, moment in update.moments().get(kind, {}).items()}
            flat |= {f"{kind}/{name}": logical(name, moments[p]) for name, p in self._named.items() if p in moments}
        return flat

    def step_counts(self) -> list[int]:
        """Updates applied so far, as every parameter counts them (distinct values, sorted: normally one)."""
        return sorted({int(count) for update in self._updates for count in update.counts()})

    def restore_step(self, step: int) -> None:
        """Set the count of updates (bias correction depends on it) after the tensors were restored in place."""
        if step < 0:
            raise RunError(f"cannot restore an optimizer to step {step}", "a step count is zero or more")
        for update in self._updates:
            for count in update.counts():
                count.fill_(float(step))

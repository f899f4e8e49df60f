"""Groups: parameters that the table of recipe/mup.py treats alike, so that one call updates them together.

    embed.weight                       AdamW   rate 1          decay 0     epsilon / n
    layers.*.attention_norm.weight     AdamW   rate l^(a-1)    decay 0     epsilon / (n l^a)
    layers.*.attention.q.weight, ...   ...

Balance parameters (a router's bias that loads move) are in none.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from headway.recipe.mup import is_muon, rule
from headway.recipe.roles import ParameterShape, Role, parameter_shapes
from headway.recipe.spec import ModelSpec, OptimizerSpec


@dataclass(frozen=True)
class Terms:
    """What a group's parameters have in common."""

    update: str  # a key of ``build.UPDATES``
    rate: float  # factor of the learning rate
    decay: float  # weight decay, times the learning rate
    epsilon: float  # of AdamW


@dataclass(frozen=True)
class Group:
    terms: Terms
    parameters: tuple[nn.Parameter, ...]


def group_parameters(named: dict[str, nn.Parameter], model: ModelSpec, spec: OptimizerSpec) -> list[Group]:
    """Groups in the order of their first parameter. No parameter is in ``named`` that ``model`` does not have; a pipeline rank
    has some of them."""
    shapes = {shape.name: shape for shape in parameter_shapes(model)}
    assert named.keys() <= shapes.keys(), f"parameters without a role: {sorted(named.keys() - shapes.keys())}"
    members: dict[Terms, list[nn.Parameter]] = {}
    for name, parameter in named.items():
        assert parameter.dim() == len(shapes[name].shape), name  # a rank may have a part of it
        if shapes[name].role is Role.BALANCE:
            assert not parameter.requires_grad, f"{name} is moved by loads, not by a gradient"
        else:
            members.setdefault(terms_of(shapes[name], model, spec), []).append(parameter)
    return [Group(terms, tuple(parameters)) for terms, parameters in members.items()]


def terms_of(shape: ParameterShape, model: ModelSpec, spec: OptimizerSpec) -> Terms:
    row = rule(shape, model, spec)
    return Terms("muon" if is_muon(shape, spec) else "adamw", row.rate, row.decay, row.epsilon)

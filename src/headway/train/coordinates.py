"""The coordinate check of a parametrisation (the verb ``mup-check``): a few updates at each width, and what they did.

One fixed batch of a few random tokens, float32, an eighth of the peak rate. For every module and every step t:

    activation_change   RMS of its output after t updates, less its output before any
    update              RMS of what the last update alone changed in its output, at the same input
    gradient            RMS of its weights' gradient, times what it shrinks by as epsilon does in the table (n, in blocks n l^a)

In a parametrisation that transfers all of them are of order one whatever the width (Yang and Hu 2020, arXiv 2011.14522).
Clipping, guard and dropout play no part.
The module ``layers.3`` is what the whole block adds to the stream, ``logits`` the end. Two things would hide the theory at widths
that a laptop can check, so they are left out: the part of the logits that the head's initial values make, which is noise that
shrinks with the root of the width by design; and large batches, since what an update does to T tokens at once adds up along
the width only where the width is well above T.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from headway.base.errors import ConfigError
from headway.base.files import read_json
from headway.model.block import Block
from headway.model.context import Context, make_context
from headway.model.decoder import Decoder
from headway.model.objective import training_sums
from headway.recipe.mup import rule
from headway.recipe.roles import parameter_shapes
from headway.recipe.spec import ModelSpec, PrecisionSpec, Spec
from headway.train.trainee import Trainee, build_trainee

ROWS, LENGTH = 2, 16
"""Of the batch: fewer tokens than the narrowest width that is worth a check."""
RATE_SHARE = 1 / 8
"""Of the peak rate: a run's first updates stand in its warm-up, and at the peak so few tokens are known by heart at once."""

Captured = dict[str, tuple[tuple[Any, ...], Tensor]]
"""Module -> its inputs and what it gave."""


def check_request(path: Path) -> dict[str, Any]:
    """Answer a request file: {"arms": [{"parametrization", "specs": [paths beside it]}], "steps"}."""
    request = read_json(path, "mup_check_request")
    arms = []
    for arm in request["arms"]:
        specs = [Spec.from_json(read_json(path.parent / name, "spec")) for name in arm["specs"]]
        rows = [row for spec in specs for row in coordinates(spec, request["steps"])]
        arms.append({"parametrization": arm["parametrization"], "rows": rows})
    return {"kind": "mup_coordinates", "schema_version": 1, "arms": arms}


def coordinates(spec: Spec, steps: int) -> list[dict[str, Any]]:
    """Rows {width, seed, step, module, quantity, value} of one model, for steps 1 to ``steps``."""
    trainee = build_trainee(replace(spec, precision=PrecisionSpec("float32")))
    decoder, (tokens_BT, targets_BT) = trainee.compute.decoder, random_tokens(spec.model)
    position_BT = torch.arange(LENGTH).repeat(ROWS, 1)
    context = make_context(position_BT, torch.zeros_like(position_BT), spec.model, spec.stages[0].rope, torch.float32)
    start, rows = copy.deepcopy(decoder), []
    first = capture(start, tokens_BT, context)

    def row(step: int, module: str, quantity: str, value: Tensor | float) -> None:
        if not math.isfinite(float(value)):
            raise ConfigError(
                f"{quantity} of {module} is not finite at width {spec.model.width}, step {step}",
                "a coordinate check compares values of order one",
                "lower optimizer.peak_rate or model.init_std",
            )
        named = {"width": spec.model.width, "seed": spec.seed, "step": step, "module": module}
        rows.append({**named, "quantity": quantity, "value": float(value)})

    for step in range(1, steps + 1):
        before = copy.deepcopy(decoder)
        for module, size in gradients(trainee, tokens_BT, targets_BT, context).items():
            row(step, module, "gradient", size)
        update(trainee)
        now = capture(decoder, tokens_BT, context)
        for module, (inputs, output) in now.items():
            origin = again(start, module, inputs) if module == "logits" else first[module][1]
            row(step, module, "activation_change", rms(output - origin))
            row(step, module, "update", rms(output - again(before, module, inputs)))
    return rows


def random_tokens(model: ModelSpec) -> tuple[Tensor, Tensor]:
    """The same at every width."""
    ids = torch.randint(model.vocabulary, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def gradients(trainee: Trainee, tokens_BT: Tensor, targets_BT: Tensor, context: Context) -> dict[str, float]:
    """One backward pass -> module -> RMS of its scaled gradient. Gradients stay for the update."""
    sums = training_sums(trainee.compute, tokens_BT, targets_BT, context, trainee.spec.stability.z_loss)
    (sums.objective_sum / targets_BT.numel()).backward()
    optimizer, named = trainee.spec.optimizer, dict(trainee.compute.decoder.named_parameters())
    found: dict[str, list[Tensor]] = {}
    for shape in parameter_shapes(trainee.spec.model):
        if (gradient := named[shape.name].grad) is not None:
            shrinks = optimizer.epsilon / rule(shape, trainee.spec.model, optimizer).epsilon
            found.setdefault(module_of(shape.name), []).append(gradient.flatten() * shrinks)
    return {module: rms(torch.cat(parts)) for module, parts in found.items()}


def module_of(name: str) -> str:
    """The row that a parameter's gradient stands in."""
    parts = name.split(".")
    if parts[0] in ("layers", "mtp"):
        return ".".join(parts[: 3 if parts[2] == "attention" else 2])
    return "logits" if parts[0] in ("head", "norm") else "embed"


def update(trainee: Trainee) -> None:
    trainee.optimizer.set_rate(trainee.spec.optimizer.peak_rate * RATE_SHARE)
    trainee.optimizer.step()
    trainee.optimizer.zero_grad()
    trainee.compute.refresh()


@torch.no_grad()
def capture(decoder: Decoder, tokens_BT: Tensor, context: Context) -> Captured:
    """A forward pass: inputs and output of every block, its attention, and the logits."""
    found: Captured = {}
    with _hooked(decoder, found):
        hidden_BTD = decoder(tokens_BT, context)
    found["logits"] = ((hidden_BTD,), decoder.logits(hidden_BTD))
    return found


@contextmanager
def _hooked(decoder: Decoder, found: Captured) -> Any:
    def keep(name: str) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            found[name] = (inputs, output - inputs[0] if isinstance(module, Block) else output)

        return hook

    blocks = list(cast("Iterable[Block]", decoder.layers))
    modules: list[tuple[str, nn.Module]] = [(block.name, block) for block in blocks] + [
        (f"{block.name}.attention", block.attention) for block in blocks
    ]
    handles = [module.register_forward_hook(keep(name)) for name, module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def again(decoder: Decoder, module: str, inputs: tuple[Any, ...]) -> Tensor:
    """What ``module`` of another state of the decoder gives at the same inputs."""
    if module == "logits":
        return decoder.logits(*inputs)
    called = decoder.get_submodule(module)
    output = called(*inputs)
    return output - inputs[0] if isinstance(called, Block) else output


def rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())

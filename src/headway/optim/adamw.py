"""AdamW over float32 master weights: two groups, decayed and not, by the parameters' roles.

Moments exist, as zeros, before the first step, so that a checkpoint has the same tensors at every step. The update itself
is torch's fused kernel: w <- w - rate * decay * w, then Adam with bias correction.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from headway.base.errors import ConfigError, RunError
from headway.recipe.roles import decays, parameter_shapes
from headway.recipe.spec import ModelSpec, OptimizerSpec


def build_optimizer(model: nn.Module, spec: OptimizerSpec, model_spec: ModelSpec | None = None) -> AdamW:
    """Fused AdamW at the peak rate (``set_rate`` before each step). ``model_spec``: by default ``model.spec``."""
    if spec.kind != "adamw":
        raise ConfigError(f"unknown optimizer {spec.kind!r}", "known: adamw")
    roles = {p.name: p.role for p in parameter_shapes(model_spec if model_spec is not None else model.spec)}  # type: ignore[arg-type]
    groups: dict[bool, list[Tensor]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[decays(roles[name])].append(parameter)
    optimizer = AdamW(
        [
            {"params": groups[True], "weight_decay": spec.weight_decay},
            {"params": groups[False], "weight_decay": 0.0},
        ],
        lr=spec.peak_rate,
        betas=(spec.beta1, spec.beta2),
        eps=spec.epsilon,
        fused=True,
    )
    _create_state(optimizer)
    return optimizer


def _create_state(optimizer: AdamW) -> None:
    """What torch would create lazily in the first step (same keys, same dtypes)."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def set_rate(optimizer: AdamW, rate: float) -> None:
    """The learning rate of the next step, for every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def state_tensors(model: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    """Everything large that a checkpoint holds: {"param/NAME", "m/NAME", "v/NAME"}. The live tensors, not copies."""
    flat: dict[str, Tensor] = {}
    named = dict(model.named_parameters())
    for name, parameter in named.items():
        flat[f"param/{name}"] = parameter.detach()
    for name, parameter in named.items():
        flat[f"m/{name}"] = optimizer.state[parameter]["exp_avg"]
    for name, parameter in named.items():
        flat[f"v/{name}"] = optimizer.state[parameter]["exp_avg_sq"]
    return flat


def step_counts(optimizer: AdamW) -> list[int]:
    """Updates applied so far, as every parameter counts them (distinct values, sorted: normally one)."""
    return sorted({int(state["step"]) for state in optimizer.state.values()})


def restore_step(optimizer: AdamW, step: int) -> None:
    """Set the count of updates (bias correction depends on it) after the tensors were restored in place."""
    if step < 0:
        raise RunError(f"cannot restore an optimizer to step {step}", "a step count is zero or more")
    for state in optimizer.state.values():
        state["step"].fill_(float(step))

"""Models as the optimizer sees them, named parameters with roles and nothing that computes; gradients by step."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from headway.recipe.roles import Role, parameter_shapes
from headway.recipe.spec import ExpertsSpec, ModelSpec, MupSpec, OptimizerSpec

MODEL = ModelSpec(
    layers=1, width=8, heads=2, kv_heads=1, head_width=4, ffn_width=12, vocabulary=11,
    rope_base=1e4, norm_epsilon=1e-5, qk_norm=True, tied_embeddings=True, init_std=0.1,
)  # fmt: skip
WIDER = dataclasses.replace(MODEL, layers=4, width=32, ffn_width=48, tied_embeddings=False, bias="all", norm="layernorm")
ROUTED = dataclasses.replace(MODEL, layers=2, experts=ExpertsSpec(experts=4, top_k=2, width=6, dense_layers=1, router_bias=True))
ADAMW = OptimizerSpec("adamw", 1e-2, 0.9, 0.95, 1e-8, 0.1, 1.0)
MUON = dataclasses.replace(ADAMW, kind="muon")
RATES = [1e-3, 1e-2, 5e-3, 5e-3, 1e-4, 1e-2]


def mup(depth_alpha: float) -> ModelSpec:
    """Four times as wide and as deep as its base."""
    return dataclasses.replace(WIDER, mup=MupSpec(base_width=8, base_layers=1, depth_alpha=depth_alpha, attention_multiplier=2.0))


def stand_in(spec: ModelSpec, device: str = "cpu") -> nn.Module:
    generator, root = torch.Generator().manual_seed(1), nn.Module()
    root.spec = spec
    for shape in parameter_shapes(spec):
        *path, last = shape.name.split(".")
        module = root
        for name in path:
            if not hasattr(module, name):
                module.add_module(name, nn.Module())
            module = getattr(module, name)
        real = device == "cpu"
        values = 0.1 * torch.randn(shape.shape, generator=generator) if real else torch.zeros(shape.shape, device=device)
        module.register_parameter(last, nn.Parameter(values, requires_grad=shape.role is not Role.BALANCE))
    return root


def give_gradients(model: nn.Module, step: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(step)
    for p in model.parameters():
        if p.requires_grad:
            p.grad = scale * torch.randn(p.shape, generator=generator)


def bits(optimizer) -> dict[str, torch.Tensor]:
    """A copy that tells -0 from 0."""
    return {name: tensor.clone().view(torch.int32) for name, tensor in optimizer.state_tensors().items()}


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)

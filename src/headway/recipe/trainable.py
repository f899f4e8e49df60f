"""What this version's engine builds, of all that a recipe can describe. Everything else can be planned, and only that.

The engine's decoder: dense, a norm before attention and feed-forward, RMSNorm, SwiGLU, grouped-query attention with RoPE over
the whole sequence, norms of queries and keys per head, no biases.
"""

from __future__ import annotations

from collections.abc import Callable

from headway.base.errors import ConfigError, Problem
from headway.recipe.lines import KeyPath
from headway.recipe.spec import ModelSpec

ONLY = {"ffn": "swiglu", "norm": "rmsnorm", "block": "pre", "bias": "none", "position": "rope"}
"""Choices with one option that can be built."""


TRAINED_PRECISIONS = ("bfloat16", "float32")


def untrainable(model: ModelSpec) -> list[str]:
    """The options of ``model`` that the engine cannot build, as a recipe writes them; empty: it can be trained."""
    found = [f"{name} = {getattr(model, name)!r}" for name, built in ONLY.items() if getattr(model, name) != built]
    if model.qk_norm and model.qk_norm_over != "head":
        found.append(f"qk_norm_over = {model.qk_norm_over!r}")
    if model.embedding_norm:
        found.append("embedding_norm")
    if model.window is not None:
        found.append(f"window = {model.window}")
    if model.latent is not None:
        found.append("latent (latent attention)")
    if model.experts is not None:
        found.append("experts (mixture of experts)")
    if model.mtp_layers:
        found.append(f"mtp_layers = {model.mtp_layers}")
    return found


def refuse_untrainable(
    model: ModelSpec, locate: Callable[[KeyPath], str] = lambda path: "", *, compute: str = "bfloat16"
) -> None:
    """ConfigError with every such option; ``locate`` says where a key of the recipe stands."""
    problems = [
        Problem(
            f"model.{option} cannot be trained by this version",
            "the engine builds dense pre-norm decoders: RMSNorm, SwiGLU, grouped-query attention with RoPE, no biases",
            "it can be planned, with headway plan; to train, remove it",
            locate(("model", option.split()[0])),
        )
        for option in untrainable(model)
    ]
    if compute not in TRAINED_PRECISIONS:
        seen, rule = f"precision.compute = {compute!r} cannot be trained by this version", "products run in bfloat16 or float32"
        way_out = 'it can be planned, with headway plan; to train, use "bfloat16"'
        problems.append(Problem(seen, rule, way_out, locate(("precision", "compute"))))
    if problems:
        raise ConfigError(problems)

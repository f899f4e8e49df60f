"""What tests of the model share."""

from __future__ import annotations

import torch

from headway.model.context import Context, make_context
from headway.recipe.spec import ModelSpec, RopeSpec


def plain_context(position, document, base: float, head_width: int, dtype: torch.dtype) -> Context:
    """Of a model with nothing but RoPE over whole heads."""
    spec = ModelSpec(1, head_width, 1, 1, head_width, 1, 1, base, 1e-5, True, True, 0.02)
    return make_context(torch.as_tensor(position), torch.as_tensor(document), spec, RopeSpec(base), dtype)

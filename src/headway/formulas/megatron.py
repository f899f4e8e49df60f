"""Megatron's closed forms, for figures that were published with them: GPT with a feed-forward of 4 h, no grouped queries.

    model      72 B s l h^2 (1 + s / 6h + V / 12lh)     what the model needs, full square of scores   (Korthikanti et al. 2022)
    full       96 B s l h^2 (1 + s / 6h + V / 16lh)     with full recomputation                       (Narayanan et al. 2021)
    selective  72 B s l h^2 (1 + s / 3h + V / 12lh)     with selective recomputation, as published    (Korthikanti et al. 2022)

The first two are ``flops_per_token`` and ``hardware_flops_per_token`` in full convention, for such models exactly. The third
counts attention twice over, backward too; first principles (only its forward again) have s / 4.5h in place of s / 3h, so that
the published HFU of 43.7 % for 22B is 42.4 %. They ignore grouped queries and other widths: 1.01e16 instead of 8.62e15 for a
sequence of Nemotron-4.
"""

from __future__ import annotations

from headway.recipe.spec import ModelSpec

SOURCE = "Narayanan et al. 2021 (arXiv 2104.04473); Korthikanti et al. 2022 (arXiv 2205.05198)"


def megatron_model_flops(model: ModelSpec, sequence: int, batch: int = 1) -> float:
    """Of a step of ``batch`` sequences, without recomputation."""
    return 72 * _scale(model, sequence, batch) * (1 + sequence / (6 * model.width) + _logits(model, 12))


def megatron_hardware_flops(model: ModelSpec, sequence: int, batch: int = 1) -> float:
    """With full recomputation."""
    return 96 * _scale(model, sequence, batch) * (1 + sequence / (6 * model.width) + _logits(model, 16))


def korthikanti_hardware_flops(model: ModelSpec, sequence: int, batch: int = 1) -> float:
    """With selective recomputation, as the paper has it."""
    return 72 * _scale(model, sequence, batch) * (1 + sequence / (3 * model.width) + _logits(model, 12))


def _scale(model: ModelSpec, sequence: int, batch: int) -> float:
    """B s l h^2"""
    return float(batch * sequence * model.layers * model.width**2)


def _logits(model: ModelSpec, factor: int) -> float:
    return model.vocabulary / (factor * model.layers * model.width)

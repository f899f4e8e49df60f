"""A model's architecture at a size at which many layouts can be proven in minutes: every option kept, every size small.

Heads, key heads and experts keep whether they are equal, grouped or single; the vocabulary is odd, so that nothing relies on
its dividing.
"""

from __future__ import annotations

from dataclasses import replace

from headway.recipe.roles import parameter_shapes
from headway.recipe.spec import BatchPhase, ModelSpec, PrecisionSpec, Spec

LAYERS, HEADS, HEAD_WIDTH, WIDTH, FFN, EXPERT_WIDTH, VOCABULARY, WINDOW = 4, 4, 16, 48, 96, 32, 255, 12
LENGTH, SEQUENCES = 32, 12
"""Tokens of a sequence, sequences of a batch: divided by 1, 2, 3, 4 and 6."""


def miniature(model: ModelSpec) -> ModelSpec:
    """The same options, small sizes."""
    kv_heads = HEADS if model.kv_heads == model.heads else max(2, HEADS // 2) if model.kv_heads > 1 else 1
    small = replace(
        model,
        layers=LAYERS,
        width=WIDTH,
        heads=HEADS,
        kv_heads=HEADS if model.latent else kv_heads,
        head_width=HEAD_WIDTH,
        ffn_width=FFN,
        vocabulary=VOCABULARY,
        positions=LENGTH if model.positions else 0,
        window=WINDOW if model.window else None,
        full_attention_every=min(model.full_attention_every, 2),
        nope_every=min(model.nope_every, 2),
        rotary_width=HEAD_WIDTH // 2 if model.rotary_width else 0,
        nominal_parameters=None,
        mup=None if model.mup is None else replace(model.mup, base_width=WIDTH // 2),
    )
    if model.latent is not None:
        rank = None if model.latent.query_rank is None else 32
        latent = replace(model.latent, query_rank=rank, kv_rank=16, nope_width=8, rope_width=16, value_width=12)
        small = replace(small, latent=latent, head_width=latent.key_width)
    if model.experts is not None:
        experts = model.experts
        few = replace(
            experts,
            experts=8,
            top_k=min(experts.top_k, 2),
            width=EXPERT_WIDTH,
            shared=min(experts.shared, 1),
            dense_layers=min(experts.dense_layers, 1),
            every=min(experts.every, 2),
            groups=min(experts.groups, 4),
            groups_per_token=min(experts.groups_per_token, 2),
        )
        small = replace(small, experts=few)
    return small


def small_spec(spec: Spec) -> Spec:
    """``spec`` with its model in miniature, and one stage of many short steps."""
    stage = spec.stages[0]
    tokens = 64 * SEQUENCES * LENGTH
    rate = replace(stage.rate, warmup_tokens=4 * SEQUENCES * LENGTH)
    phases = (BatchPhase(0, SEQUENCES),)
    stage = replace(stage, tokens=tokens, sequence_length=LENGTH, sequences=64 * SEQUENCES, phases=phases, rate=rate)
    model = miniature(spec.model)
    return replace(spec, model=model, stages=(stage,), precision=_precision(spec.precision, model))


def _precision(precision: PrecisionSpec, model: ModelSpec) -> PrecisionSpec:
    """Without modules that the small model does not have: layers further up."""
    names = [f".{shape.name}." for shape in parameter_shapes(model)] + [".head.weight."]
    modules = {part: kind for part, kind in precision.modules.items() if any(f".{part}." in name for name in names)}
    return replace(precision, modules=modules)

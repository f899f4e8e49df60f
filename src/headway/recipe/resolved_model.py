"""The model of a Spec, of a recipe's section [model] and a vocabulary: what the rules of a recipe count with too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.recipe.spec import GATED, ExpertsSpec, LatentSpec, ModelSpec, MupSpec, YarnSpec

if TYPE_CHECKING:
    from headway.recipe.schema import Model, Yarn


def resolve_model(model: Model, vocabulary: int) -> ModelSpec:
    """Under latent attention a head is as wide as its query, and every head has keys of its own (``ModelSpec``)."""
    latent = LatentSpec(**model.latent.model_dump()) if model.latent else None
    return ModelSpec(
        layers=model.layers,
        width=model.width,
        heads=model.heads,
        kv_heads=model.kv_heads or model.heads,
        head_width=latent.key_width if latent else model.head_width or model.width // model.heads,
        ffn_width=model.ffn_width or default_ffn_width(model.width, gated=model.ffn in GATED),
        vocabulary=vocabulary,
        rope_base=float(model.rope_base),
        norm_epsilon=float(model.norm_epsilon),
        qk_norm=model.qk_norm and latent is None,
        tied_embeddings=model.tied_embeddings,
        init_std=float(model.init_std),
        ffn=model.ffn,
        norm=model.norm,
        block=model.block,
        bias=model.bias,
        position=model.position,
        positions=model.positions or 0,
        qk_norm_over=model.qk_norm_over,
        embedding_norm=model.embedding_norm,
        window=model.window,
        full_attention_every=model.full_attention_every,
        latent=latent,
        experts=ExpertsSpec(**model.experts.model_dump()) if model.experts else None,
        mtp_layers=model.mtp_layers,
        nominal_parameters=model.nominal_parameters,
        mtp_weight=float(model.mtp_weight),
        rotary_width=0 if model.rotary_share == 1 else rotary_width(model),
        yarn=resolve_yarn(model.yarn),
        nope_every=model.nope_every,
        logit_softcap=optional_float(model.logit_softcap),
        attention_softcap=optional_float(model.attention_softcap),
        dropout=float(model.dropout),
        init=model.init,
        mup=_mup(model),
    )


def optional_float(value: float | None) -> float | None:
    return None if value is None else float(value)


def rotary_width(model: Model) -> int:
    """Values of a head that RoPE turns; rounding to pairs is refused elsewhere (``model_checks``)."""
    return round(float(model.rotary_share) * (model.head_width or model.width // model.heads))


def resolve_yarn(yarn: Yarn | None) -> YarnSpec | None:
    """A factor of 1 changes nothing: it is how a stage says that there is no YaRN any more."""
    if yarn is None or yarn.factor == 1:
        return None
    return YarnSpec(factor=float(yarn.factor), original=yarn.original, fast=float(yarn.fast), slow=float(yarn.slow))


def _mup(model: Model) -> MupSpec | None:
    if model.mup is None:
        return None
    return MupSpec(
        base_width=model.mup.base_width,
        base_layers=model.mup.base_layers or model.layers,
        depth_alpha=float(model.mup.depth_alpha),
        attention_multiplier=float(model.mup.attention_multiplier),
    )


def default_ffn_width(width: int, *, gated: bool = True) -> int:
    """8/3 of the width, so that three matrices cost what two of 4 x width would; a multiple of 64 for the kernels."""
    return max(64, round(8 * width / 3 / 64) * 64) if gated else 4 * width

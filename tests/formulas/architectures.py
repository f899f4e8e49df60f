"""Any architecture that a ModelSpec can describe, small: for properties that must hold of all of them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from headway.recipe.spec import ExpertsSpec, LatentSpec, ModelSpec

WIDTHS = st.integers(1, 12).map(lambda n: 2 * n)

LATENTS = st.builds(
    LatentSpec,
    query_rank=st.one_of(st.none(), WIDTHS),
    kv_rank=WIDTHS,
    nope_width=WIDTHS,
    rope_width=WIDTHS,
    value_width=WIDTHS,
)


@st.composite
def experts(draw: st.DrawFn, layers: int) -> ExpertsSpec:
    count = draw(st.integers(1, 9))
    dense = draw(st.integers(0, layers - 1))
    return ExpertsSpec(
        experts=count,
        top_k=draw(st.integers(1, count)),
        width=draw(WIDTHS),
        shared=draw(st.integers(0, 2)),
        dense_layers=dense,
        every=draw(st.integers(1, layers - dense)),
        router_bias=draw(st.booleans()),
    )


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    layers, heads = draw(st.integers(1, 7)), draw(st.integers(1, 4))
    latent = draw(st.one_of(st.none(), LATENTS))
    position = draw(st.sampled_from(("rope", "learned", "none")))
    model = ModelSpec(
        layers=layers,
        width=draw(WIDTHS),
        heads=heads,
        kv_heads=heads if latent else draw(st.sampled_from([k for k in range(1, heads + 1) if heads % k == 0])),
        head_width=latent.key_width if latent else draw(WIDTHS),
        ffn_width=draw(WIDTHS),
        vocabulary=draw(st.integers(300, 400)),
        rope_base=10_000.0,
        norm_epsilon=1e-5,
        qk_norm=latent is None and draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        init_std=0.02,
        ffn=draw(st.sampled_from(("swiglu", "geglu", "gelu", "relu2"))),
        norm=draw(st.sampled_from(("rmsnorm", "layernorm"))),
        block=draw(st.sampled_from(("pre", "post", "post-add", "sandwich", "parallel", "parallel-two-norms"))),
        bias=draw(st.sampled_from(("none", "norm", "qkv", "all"))),
        position=position,
        positions=draw(st.integers(1, 50)) if position == "learned" else 0,
        qk_norm_over=draw(st.sampled_from(("head", "all"))),
        embedding_norm=draw(st.booleans()),
        window=draw(st.one_of(st.none(), st.integers(1, 64))),
        full_attention_every=draw(st.integers(0, 4)),
        latent=latent,
        mtp_layers=draw(st.integers(0, 2)),
        nominal_parameters=draw(st.one_of(st.none(), st.integers(1, 10**12))),
    )
    return replace(model, experts=draw(st.one_of(st.none(), experts(layers))))

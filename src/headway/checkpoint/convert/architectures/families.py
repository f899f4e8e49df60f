"""The architectures of ``transformers`` that compute what our decoder can compute: options, names, configuration.

    llama       pre-norm, RMSNorm, SwiGLU, grouped queries; biases everywhere or nowhere
    mistral     the same with a window in every layer, or of a width that the heads do not divide
    ministral   the same with a window in some layers
    qwen2       biases of q, k and v; windows                qwen3, qwen3_moe   a norm per head of q and k; windows; experts
    olmo2       norms behind attention and feed-forward, one over all heads of q and k;   olmo3   the same with windows
    olmoe       pre-norm, norms over all heads, experts      smollm3            layers without RoPE
    mixtral     experts by softmax                           deepseek_v3        latent attention, experts by sigmoid
    phi3        RoPE on a part of each head                  arcee              squared ReLU without a gate
    gpt2, starcoder2, gpt_neox, stablelm, cohere             LayerNorm
    gemma2      norms around, softcaps, GeGLU

Earlier entries are preferred. Every one that takes a spec gives its logits: ``tests/model/test_references.py`` compares each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from headway.checkpoint.convert.architectures import names, settings
from headway.checkpoint.convert.architectures.names import Names
from headway.checkpoint.convert.architectures.settings import FULL, SLIDING, Aspect, Config
from headway.recipe.spec import ModelSpec

PLAIN: dict[str, tuple[Any, ...]] = {
    "ffn": ("swiglu",),
    "norm": ("rmsnorm",),
    "block": ("pre",),
    "bias": ("none",),
    "position": ("rope",),
    "qk_norm": (False,),
    "embedding_norm": (False,),
    "window": ("none",),
    "latent": (False,),
    "experts": (False,),
    "mtp_layers": (0,),
    "rotary_share": (1.0,),
    "yarn": (False, True),
    "nope_every": (0,),
    "logit_softcap": (None,),
    "attention_softcap": (None,),
}
"""By option: what is computed unless a family says otherwise. () stands for anything."""

WINDOWS = ("none", "every layer", "some layers (full_attention_every)")

_KEYS = {
    "vocabulary": "vocab_size",
    "width": "hidden_size",
    "ffn_width": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_width": "head_dim",
    "norm_epsilon": "rms_norm_eps",
    "tied_embeddings": "tie_word_embeddings",
    "init_std": "initializer_range",
}
_LAYERNORM = _KEYS | {"norm_epsilon": "layer_norm_eps"}
_GPT2 = {
    "vocabulary": "vocab_size",
    "width": "n_embd",
    "ffn_width": "n_inner",
    "layers": "n_layer",
    "heads": "n_head",
    "positions": "n_positions",
    "norm_epsilon": "layer_norm_epsilon",
    "tied_embeddings": "tie_word_embeddings",
    "init_std": "initializer_range",
}


def options(model: ModelSpec) -> dict[str, Any]:
    """What of a model is an option, by the names of a recipe."""
    share = model.rotary_width / model.head_width if model.rotary_width and not model.latent else 1.0
    window = "none" if model.window is None else WINDOWS[2] if model.full_attention_every else "every layer"
    return {
        "ffn": model.ffn,
        "norm": model.norm,
        "block": model.block,
        "bias": model.bias,
        "position": model.position,
        "qk_norm": model.qk_norm_over if model.qk_norm else False,
        "embedding_norm": model.embedding_norm,
        "window": window,
        "latent": model.latent is not None,
        "experts": model.experts is not None,
        "mtp_layers": model.mtp_layers,
        "rotary_share": share,
        "yarn": model.yarn is not None,
        "nope_every": model.nope_every,
        "logit_softcap": model.logit_softcap,
        "attention_softcap": model.attention_softcap,
    }


Rule = Callable[[ModelSpec], Iterator[str]]
"""Says what of a model's shape the family does not compute, by the names of a recipe."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """``computes``: options beside ``PLAIN``. ``fields``: of a model that is read. ``constants``: what stands in every file.

    What a file leaves out stands in ``defaults.py``.
    """

    model_type: str
    causal: str
    names: Callable[[ModelSpec], Names]
    computes: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    keys: dict[str, str] = field(default_factory=lambda: _KEYS)
    constants: Config = field(default_factory=dict)
    aspects: tuple[Aspect, ...] = ()

    def unmet(self, model: ModelSpec) -> dict[str, str]:
        """What of the model it does not compute, by option; empty: it computes the model."""
        allowed, found = PLAIN | self.computes, options(model)
        wrong = {key: f"{key} = {said(value)}" for key, value in found.items() if allowed[key] and value not in allowed[key]}
        return wrong | {text: text for rule in (yarn_everywhere, *self.rules) for text in rule(model)}

    def write(self, model: ModelSpec) -> Config:
        config: Config = {"architectures": [self.causal], "model_type": self.model_type}
        config |= {key: getattr(model, name) for name, key in self.keys.items()}
        for aspect in self.aspects:
            config |= aspect.write(model)
        return config | self.constants


def said(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else f"{value}"


# --- rules of shape -----------------------------------------------------------------------------------------------------


def yarn_everywhere(model: ModelSpec) -> Iterator[str]:
    """There YaRN's growth of scores is part of the angles, so what RoPE does not turn does not grow."""
    if model.yarn is not None and options(model)["rotary_share"] != 1.0:
        yield "yarn beside rotary_share"


def heads_divide(model: ModelSpec) -> Iterator[str]:
    if model.width % model.heads:
        yield f"width = {model.width} that heads = {model.heads} do not divide"


def heads_fill(model: ModelSpec) -> Iterator[str]:
    if model.heads * model.head_width != model.width:
        yield f"heads x head_width = {model.heads} x {model.head_width} beside width = {model.width}"


def own_keys(model: ModelSpec) -> Iterator[str]:
    if model.kv_heads != model.heads:
        yield f"kv_heads = {model.kv_heads} of {model.heads}"


def latent_epsilon(model: ModelSpec) -> Iterator[str]:
    """The norms of the ranks have an epsilon of their own there, which no configuration changes."""
    if model.latent is not None and model.norm_epsilon != 1e-6:
        yield f"norm_epsilon = {model.norm_epsilon:g} (norms of latent ranks have 1e-06)"


def routing(
    *, score: str = "softmax", balanced: bool = False, normalised: bool = True, patterns: bool = False, dense: bool = False
) -> Rule:
    """``patterns``: any layers may have experts; ``dense``: the first ones may have none."""

    def rule(model: ModelSpec) -> Iterator[str]:
        experts = model.experts
        if experts is None:
            return
        if experts.score != score:
            yield f'experts.score = "{experts.score}"'
        if experts.router_bias != balanced:
            yield f"experts.router_bias = {said(experts.router_bias)}"
        if normalised and not experts.normalise:
            yield "experts.normalise = false"
        if not patterns and experts.every != 1:
            yield f"experts.every = {experts.every}"
        if not patterns and not dense and experts.dense_layers:
            yield f"experts.dense_layers = {experts.dense_layers}"

    return rule


def all_alike(model: ModelSpec) -> Iterator[str]:
    """Chosen scores stay as they are, every expert is chosen alone, and none is shared."""
    experts = model.experts
    if experts is None:
        return
    if experts.scale != 1.0:
        yield f"experts.scale = {experts.scale:g}"
    if experts.shared:
        yield f"experts.shared = {experts.shared}"
    if experts.groups_per_token:
        yield f"experts.groups_per_token = {experts.groups_per_token}"


def grouped(model: ModelSpec) -> Iterator[str]:
    experts = model.experts
    if experts is None:
        return
    if not experts.shared:
        yield "experts.shared = 0"
    if experts.groups_per_token and experts.experts < 2 * experts.groups:
        yield f"experts.groups = {experts.groups} of one expert each"


# --- the table ----------------------------------------------------------------------------------------------------------


def _always(table: Names) -> Callable[[ModelSpec], Names]:
    return lambda model: table


def _deepseek_names(model: ModelSpec) -> Names:
    assert model.latent is not None
    return names.DEEPSEEK if model.latent.query_rank is not None else names.DEEPSEEK_DIRECT


def _all_sliding(_: int) -> str:
    return SLIDING


_SILU = {"hidden_act": "silu", "attention_dropout": 0.0}
_NO_BIAS = {"attention_bias": False}

FAMILIES = [
    Family(
        model_type="llama",
        causal="LlamaForCausalLM",
        names=_always(names.LLAMA),
        computes={"bias": ("none", "all")},
        rules=(heads_divide,),
        constants=_SILU,
        aspects=(settings.rope(), settings.BIASES),
    ),
    Family(
        model_type="qwen3",
        causal="Qwen3ForCausalLM",
        names=_always(names.LLAMA),
        computes={"qk_norm": ("head",), "window": WINDOWS},
        fields={"qk_norm": True},
        constants=_SILU | _NO_BIAS,
        aspects=(settings.rope(), settings.WINDOW_SWITCHED),
    ),
    Family(
        model_type="mistral",
        causal="MistralForCausalLM",
        names=_always(names.LLAMA),
        computes={"window": ("none", "every layer")},
        constants=_SILU,
        aspects=(settings.rope(), settings.WINDOW_IN_ALL),
    ),
    Family(
        model_type="ministral",
        causal="MinistralForCausalLM",
        names=_always(names.LLAMA),
        computes={"window": WINDOWS},
        constants=_SILU,
        aspects=(settings.rope(), settings.window_by_type(_all_sliding)),
    ),
    Family(
        model_type="qwen2",
        causal="Qwen2ForCausalLM",
        names=_always(names.LLAMA),
        computes={"bias": ("qkv",), "window": WINDOWS},
        fields={"bias": "qkv"},
        constants=_SILU,
        aspects=(settings.rope(), settings.WINDOW_SWITCHED),
    ),
    Family(
        model_type="olmo2",
        causal="Olmo2ForCausalLM",
        names=_always(names.POST),
        computes={"block": ("post",), "qk_norm": ("all",)},
        fields={"block": "post", "qk_norm": True, "qk_norm_over": "all"},
        constants=_SILU | _NO_BIAS,
        aspects=(settings.rope(),),
    ),
    Family(
        model_type="olmo3",
        causal="Olmo3ForCausalLM",
        names=_always(names.POST),
        computes={"block": ("post",), "qk_norm": ("all",), "window": WINDOWS},
        fields={"block": "post", "qk_norm": True, "qk_norm_over": "all"},
        constants=_SILU | _NO_BIAS,
        aspects=(
            settings.rope(500_000.0, by_layer_type=True),
            settings.window_by_type(lambda layer: FULL if (layer + 1) % 4 == 0 else SLIDING),
        ),
    ),
    Family(
        model_type="smollm3",
        causal="SmolLM3ForCausalLM",
        names=_always(names.LLAMA),
        computes={"nope_every": (), "bias": ("none", "all"), "window": WINDOWS},
        constants=_SILU,
        aspects=(settings.rope(2_000_000.0), settings.NO_ROPE, settings.BIASES, settings.WINDOW_SWITCHED),
    ),
    Family(
        model_type="mixtral",
        causal="MixtralForCausalLM",
        names=_always(names.MIXTRAL),
        computes={"experts": (True,), "window": ("none", "every layer")},
        rules=(routing(), all_alike),
        constants=_SILU | {"output_router_logits": False, "router_jitter_noise": 0.0},
        aspects=(settings.rope(1_000_000.0), settings.WINDOW_IN_ALL, settings.MIXTRAL),
    ),
    Family(
        model_type="qwen3_moe",
        causal="Qwen3MoeForCausalLM",
        names=_always(names.EXPERTS),
        computes={"experts": (True,), "qk_norm": ("head",), "window": ("none", "every layer")},
        fields={"qk_norm": True},
        rules=(routing(normalised=False, patterns=True), all_alike),
        constants=_SILU | _NO_BIAS | {"output_router_logits": False},
        aspects=(settings.rope(), settings.WINDOW_SWITCHED_IN_ALL, settings.QWEN3_MOE),
    ),
    Family(
        model_type="olmoe",
        causal="OlmoeForCausalLM",
        names=_always(names.EXPERTS),
        computes={"experts": (True,), "qk_norm": ("all",)},
        fields={"qk_norm": True, "qk_norm_over": "all"},
        rules=(routing(normalised=False), all_alike),
        constants=_SILU | _NO_BIAS | {"clip_qkv": None, "output_router_logits": False},
        aspects=(settings.rope(), settings.OLMOE),
    ),
    Family(
        model_type="deepseek_v3",
        causal="DeepseekV3ForCausalLM",
        names=_deepseek_names,
        computes={"experts": (True,), "latent": (True,), "mtp_layers": ()},
        rules=(routing(score="sigmoid", balanced=True, normalised=False, dense=True), grouped, latent_epsilon),
        keys={name: key for name, key in _KEYS.items() if name != "head_width"},
        constants=_SILU | _NO_BIAS,
        aspects=(settings.rope(latent=True), settings.DEEPSEEK),
    ),
    Family(
        model_type="phi3",
        causal="Phi3ForCausalLM",
        names=_always(names.PHI3),
        computes={"rotary_share": (), "yarn": (False,), "window": ("none", "every layer")},
        constants=_SILU,
        aspects=(settings.rope(share=1.0), settings.WINDOW_IN_ALL),
    ),
    Family(
        model_type="arcee",
        causal="ArceeForCausalLM",
        names=_always(names.LLAMA),
        computes={"ffn": ("relu2",), "bias": ("none", "all")},
        fields={"ffn": "relu2"},
        constants={"hidden_act": "relu2", "attention_dropout": 0.0},
        aspects=(settings.rope(), settings.BIASES),
    ),
    Family(
        model_type="gpt2",
        causal="GPT2LMHeadModel",
        names=_always(names.GPT2),
        computes={"ffn": ("gelu",), "norm": ("layernorm",), "bias": ("all",), "position": ("learned",), "yarn": (False,)},
        fields={"ffn": "gelu", "norm": "layernorm", "bias": "all", "position": "learned", "rope_base": 10_000.0},
        rules=(heads_fill, own_keys),
        keys=_GPT2,
        constants={
            "activation_function": "gelu_new",
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "reorder_and_upcast_attn": False,
            "add_cross_attention": False,
            **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
        },
    ),
    Family(
        model_type="starcoder2",
        causal="Starcoder2ForCausalLM",
        names=_always(names.STARCODER2),
        computes={"ffn": ("gelu",), "norm": ("layernorm",), "bias": ("all",), "window": ("none", "every layer")},
        fields={"ffn": "gelu", "norm": "layernorm", "bias": "all"},
        keys=_KEYS | {"norm_epsilon": "norm_epsilon"},
        constants={"hidden_act": "gelu_pytorch_tanh", "use_bias": True},
        aspects=(settings.rope(), settings.WINDOW_IN_ALL),
    ),
    Family(
        model_type="gpt_neox",
        causal="GPTNeoXForCausalLM",
        names=_always(names.GPT_NEOX),
        computes={
            "ffn": ("gelu",),
            "norm": ("layernorm",),
            "bias": ("all",),
            "block": ("pre", "parallel-two-norms"),
            "rotary_share": (),
        },
        fields={"ffn": "gelu", "norm": "layernorm", "bias": "all"},
        rules=(heads_fill, own_keys),
        keys={name: key for name, key in _LAYERNORM.items() if name not in ("kv_heads", "head_width")},
        constants={"hidden_act": "gelu_pytorch_tanh", "attention_bias": True},
        aspects=(settings.rope(share=0.25), settings.parallel("parallel-two-norms", missing=True)),
    ),
    Family(
        model_type="stablelm",
        causal="StableLmForCausalLM",
        names=_always(names.LLAMA),
        computes={"norm": ("layernorm",), "bias": ("norm",), "block": ("pre", "parallel"), "rotary_share": ()},
        fields={"norm": "layernorm", "bias": "norm"},
        rules=(heads_fill,),
        keys={name: key for name, key in _LAYERNORM.items() if name != "head_width"},
        constants=_SILU | {"use_qkv_bias": False, "qk_layernorm": False},
        aspects=(settings.rope(share=0.25), settings.parallel("parallel", missing=False)),
    ),
    Family(
        model_type="cohere",
        causal="CohereForCausalLM",
        names=_always(names.COHERE),
        computes={"norm": ("layernorm",), "block": ("parallel",)},
        fields={"norm": "layernorm", "block": "parallel"},
        keys=_LAYERNORM,
        constants=_SILU | _NO_BIAS | {"logit_scale": 1.0, "use_qk_norm": False},
        aspects=(settings.rope(500_000.0),),
    ),
    Family(
        model_type="gemma2",
        causal="Gemma2ForCausalLM",
        names=_always(names.GEMMA2),
        computes={"ffn": ("geglu",), "block": ("sandwich",), "window": WINDOWS, "logit_softcap": (), "attention_softcap": ()},
        fields={"ffn": "geglu", "block": "sandwich"},
        rules=(heads_divide,),
        constants={"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False, "use_bidirectional_attention": None},
        aspects=(
            settings.rope(),
            settings.SOFTCAPS,
            settings.QUERY_SCALE,
            settings.window_by_type(lambda layer: FULL if (layer + 1) % 2 == 0 else SLIDING),
        ),
    ),
]
BY_TYPE = {family.model_type: family for family in FAMILIES}

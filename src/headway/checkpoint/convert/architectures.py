"""Which architecture of ``transformers`` computes what our decoder computes, and its configuration.

    ours                                                 transformers
    pre-norm, RMSNorm, SwiGLU, grouped queries, no bias
      with qk_norm (a gain per element of a head)        Qwen3ForCausalLM
      without                                            LlamaForCausalLM

Both rotate the pairs (i, i + E/2) by position * base^(-2i/E), as ``model.kernels`` does, so rows of q and k keep their order.
Qwen3 norms q and k before the rotation, with the epsilon of all other norms; both scale by 1 / sqrt(E). A test compares logits.
Everything else that a recipe can describe cannot be trained by this version, so no checkpoint of it exists.
"""

from __future__ import annotations

from typing import Any

from headway.base.errors import Problem, RunError
from headway.checkpoint.convert.contents import Kind
from headway.recipe.roles import parameter_shapes
from headway.recipe.schedules import Schedule
from headway.recipe.spec import ModelSpec, Spec, StageSpec
from headway.recipe.trainable import refuse_untrainable

PARAM = "param/"
ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}
"""Model type -> class, as transformers names them."""

_TOP = {"embed.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight", "head.weight": "lm_head.weight"}
_IN_LAYER = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.q.weight": "self_attn.q_proj.weight",
    "attention.k.weight": "self_attn.k_proj.weight",
    "attention.v.weight": "self_attn.v_proj.weight",
    "attention.o.weight": "self_attn.o_proj.weight",
    "attention.q_norm.weight": "self_attn.q_norm.weight",
    "attention.k_norm.weight": "self_attn.k_norm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn.gate.weight": "mlp.gate_proj.weight",
    "ffn.up.weight": "mlp.up_proj.weight",
    "ffn.down.weight": "mlp.down_proj.weight",
}
_TOP_BACK = {theirs: ours for ours, theirs in _TOP.items()}
_IN_LAYER_BACK = {theirs: ours for ours, theirs in _IN_LAYER.items()}


def their_name(name: str) -> str | None:
    """``param/layers.3.ffn.up.weight`` -> ``model.layers.3.mlp.up_proj.weight``; None for what they have no name for."""
    inner = name.removeprefix(PARAM)
    if inner == name:
        return None
    return _TOP.get(inner) or _in_layer(inner, "layers.", "model.layers.", _IN_LAYER)


def our_name(name: str) -> str | None:
    """The way back."""
    inner = _TOP_BACK.get(name) or _in_layer(name, "model.layers.", "layers.", _IN_LAYER_BACK)
    return None if inner is None else PARAM + inner


def _in_layer(name: str, before: str, after: str, table: dict[str, str]) -> str | None:
    number, _, rest = name.removeprefix(before).partition(".")
    known = name.startswith(before) and number.isascii() and number.isdecimal() and str(int(number)) == number and rest in table
    return f"{after}{number}.{table[rest]}" if known else None


def model_type(model: ModelSpec) -> str:
    return "qwen3" if model.qk_norm else "llama"


def check_fits(tensors: dict[str, Kind], model: ModelSpec) -> None:
    """RunError unless the parameters are exactly those of the model."""
    refuse_untrainable(model)
    wanted = {PARAM + p.name: p.shape for p in parameter_shapes(model)}
    found = {name: kind.shape for name, kind in tensors.items() if name.startswith(PARAM)}
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong:
        rule = "the parameters are those that the run's spec describes"
        raise RunError(
            [
                Problem(f"{n}: {found.get(n, 'missing')}, by the spec {wanted.get(n, 'none')}", rule, "use the run's own")
                for n in wrong
            ]
        )


def stage_of(spec: Spec, step: int) -> StageSpec:
    """The stage that the last trained step belongs to: its rope base and sequence length are those of the weights."""
    schedule = Schedule(spec)
    if step > schedule.total_steps:
        raise RunError(f"step {step}", f"the run's spec ends at step {schedule.total_steps}", "convert a checkpoint of this run")
    return spec.stages[schedule.place(max(0, step - 1)).stage]


def configuration(spec: Spec, step: int, dtype: str | None) -> dict[str, Any]:
    """``config.json``; ``dtype``: of all weights, None where they differ. Written for versions 4 and 5 of transformers."""
    model, stage = spec.model, stage_of(spec, step)
    kind = model_type(model)
    biases = {"attention_bias": False} if kind == "qwen3" else {"attention_bias": False, "mlp_bias": False}
    window = {"use_sliding_window": False, "sliding_window": None} if kind == "qwen3" else {}
    named = {"dtype": dtype, "torch_dtype": dtype} if dtype else {}
    return {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": model.vocabulary,
        "hidden_size": model.width,
        "intermediate_size": model.ffn_width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_width,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_epsilon,
        "rope_theta": stage.rope_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": stage.rope_base},
        "max_position_embeddings": stage.sequence_length,
        "tie_word_embeddings": model.tied_embeddings,
        "initializer_range": model.init_std,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        **biases,
        **window,
        **named,
    }


def refuse_foreign(config: Any, where: str) -> None:
    """RunError for a configuration that computes something else, though its tensors may have the same names."""
    wrong = _differences(config) if isinstance(config, dict) else ["it is no JSON object"]
    if wrong:
        way_out = "remove config.json to take over the weights alone, where you know what they mean"
        raise RunError(
            f"config.json describes another model: {', '.join(wrong)}",
            f"our decoder is that of {' and '.join(ARCHITECTURES.values())}, SwiGLU, plain RoPE, no biases; path: {where}",
            way_out,
        )


def _differences(config: dict[str, Any]) -> list[str]:
    """What of a configuration our decoder has not."""
    plain = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "use_sliding_window": False}
    wrong = [f"{key} = {config[key]!r}" for key, value in plain.items() if config.get(key, value) != value]
    if config.get("model_type") not in ARCHITECTURES:
        wrong.append(f"model_type = {config.get('model_type')!r}")
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key) or {}
        kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else rope
        if kind != "default":
            wrong.append(f"{key} of type {kind!r}")
    return wrong

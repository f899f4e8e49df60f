"""``config.json``, written and read: aspects that the families share, each with its exact way back.

An aspect owns some keys. ``write`` says them of a model; ``read`` says the fields of ``ModelSpec`` that they mean, and refuses
what our decoder does not compute. Keys that no aspect owns are compared with what would be written, and unknown ones are refused
unless they are known to change nothing (``HARMLESS``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.recipe.spec import ExpertsSpec, LatentSpec, ModelSpec, YarnSpec

Config = dict[str, Any]
SLIDING, FULL = "sliding_attention", "full_attention"
UNUSED_WINDOW = 4096

_IN_TRAINING = """
    aux_loss_alpha attention_dropout attn_pdrop classifier_dropout embd_pdrop embedding_dropout hidden_dropout initializer_range
    moe_layer_freq output_router_logits resid_pdrop residual_dropout router_aux_loss_coef router_jitter_noise seq_aux
"""
_ELSE = """
    _name_or_path architectures auto_map bos_token_id cache_implementation chunk_size_feed_forward dtype eos_token_id ep_size
    id2label is_decoder label2id max_position_embeddings max_window_layers model_type n_ctx original_max_position_embeddings
    pad_token_id pretraining_tp problem_type return_dict scoring_func summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj task_specific_params topk_method torch_dtype transformers_version
    use_cache
"""
HARMLESS = frozenset((_IN_TRAINING + _ELSE).split())
"""Of training, of generation, of the file itself."""


class Foreign(Exception):
    """What of a configuration our decoder has not."""


@dataclass(frozen=True, kw_only=True)
class Aspect:
    keys: frozenset[str]
    write: Callable[[ModelSpec], Config]
    read: Callable[[Config], Config]


def _aspect(keys: str, write: Callable[[ModelSpec], Config], read: Callable[[Config], Config]) -> Aspect:
    return Aspect(keys=frozenset(keys.split()), write=write, read=read)


# --- RoPE ---------------------------------------------------------------------------------------------------------------


def rope(theta: float = 10_000.0, *, share: float | None = None, latent: bool = False, by_layer_type: bool = False) -> Aspect:
    """``theta``, ``share``: base and turned part of a head where a file has none; None: the whole head, always.

    ``by_layer_type``: parameters stand once for each kind of layer.
    """

    def write(model: ModelSpec) -> Config:
        parameters = _rope_parameters(model, latent)
        if share is not None:
            parameters["partial_rotary_factor"] = (model.rotary_width or model.head_width) / model.head_width
        if by_layer_type:
            return {"rope_parameters": {FULL: parameters, SLIDING: dict(parameters)}}
        part = {"partial_rotary_factor": parameters["partial_rotary_factor"]} if "partial_rotary_factor" in parameters else {}
        old = {"rope_scaling": {key: value for key, value in parameters.items() if key != "rope_theta"}} if model.yarn else {}
        return {"rope_theta": model.rope_base, "rope_parameters": parameters, **part, **old}

    def read(config: Config) -> Config:
        parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if by_layer_type and FULL in parameters:
            if parameters[FULL] != (parameters.get(SLIDING) or parameters[FULL]):
                raise Foreign("rope_parameters that differ between kinds of layers")
            parameters = parameters[FULL]
        base = config.get("rope_theta") or config.get("rotary_emb_base") or theta
        return _read_rope({"rope_theta": base, **_given(parameters)}, config, latent, share or 1.0)

    return _aspect("rope_theta rope_parameters rope_scaling partial_rotary_factor rotary_pct rotary_emb_base", write, read)


def _rope_parameters(model: ModelSpec, latent: bool) -> Config:
    kind: Config = {"rope_type": "default", "rope_theta": model.rope_base}
    if model.yarn is not None:
        kind |= {
            "rope_type": "yarn",
            "factor": model.yarn.factor,
            "original_max_position_embeddings": model.yarn.original,
            "beta_fast": model.yarn.fast,
            "beta_slow": model.yarn.slow,
        }
        # there scores grow by the square of the ratio of both in angles, and by that of the second over the whole head
        kind |= {"mscale": 1.0, "mscale_all_dim": 1.0} if latent else {}
    return kind


def _read_rope(parameters: Config, config: Config, latent: bool, missing: float) -> Config:
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in ("default", "yarn"):
        raise Foreign(f"RoPE of type {kind!r}")
    share = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor") or config.get("rotary_pct") or missing)
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    turned = {} if share == 1.0 or latent else {"rotary_width": int(head * share)}
    yarn = _read_yarn(parameters, latent) if kind == "yarn" else None
    return {"rope_base": float(parameters["rope_theta"]), "yarn": yarn, **turned}


def _read_yarn(parameters: Config, latent: bool) -> YarnSpec:
    factor, original = parameters.get("factor"), parameters.get("original_max_position_embeddings")
    if factor is None or original is None:
        raise Foreign("YaRN without factor or original_max_position_embeddings")
    grown, asked = 0.1 * math.log(factor) + 1, parameters.get("attention_factor")
    scales = parameters.get("mscale"), parameters.get("mscale_all_dim")
    wrong = asked is not None and not math.isclose(asked, 1.0 if latent else grown)
    if wrong or scales != ((1.0, 1.0) if latent else (None, None)):
        raise Foreign("YaRN with another growth of scores than (0.1 ln factor + 1)^2")
    if not parameters.get("truncate", True):
        raise Foreign("YaRN whose ramp begins and ends between pairs")
    slow, fast = parameters.get("beta_slow") or 1.0, parameters.get("beta_fast") or 32.0
    return YarnSpec(factor=float(factor), original=int(original), fast=float(fast), slow=float(slow))


def _given(parameters: Config) -> Config:
    return {key: value for key, value in parameters.items() if value is not None}


# --- windows and layers without positions -------------------------------------------------------------------------------


def every_of(special: list[bool], what: str) -> int:
    """n, where every n-th of the layers (n, 2n, ...) is special and no other; 0 where none is."""
    if not any(special):
        return 0
    every = special.index(True) + 1
    if special != [(layer + 1) % every == 0 for layer in range(len(special))]:
        raise Foreign(f"{what} in layers that do not repeat every {every}")
    return every


def _types(model: ModelSpec) -> list[str]:
    return [SLIDING if model.is_windowed(layer) else FULL for layer in range(model.layers)]


def _read_types(config: Config, missing: Callable[[int], str]) -> Config:
    """``missing``: the kind of layer i where the file lists none."""
    count = config["num_hidden_layers"]
    types = config.get("layer_types") or [missing(layer) for layer in range(count)]
    if config.get("sliding_window") is None or SLIDING not in types:
        return {}
    return {
        "window": config["sliding_window"],
        "full_attention_every": every_of([kind != SLIDING for kind in types], "full attention"),
    }


WINDOW_IN_ALL = _aspect(
    "sliding_window",
    lambda model: {"sliding_window": model.window},
    lambda config: {"window": config["sliding_window"]} if config.get("sliding_window") else {},
)
"""Every layer has it, or none."""


def window_by_type(missing: Callable[[int], str]) -> Aspect:
    """Layers say their kind one by one. A width stands there even where no layer uses it: their masks ask for one."""

    def write(model: ModelSpec) -> Config:
        return {"sliding_window": model.window or UNUSED_WINDOW, "layer_types": _types(model)}

    return _aspect("sliding_window layer_types", write, lambda config: _read_types(config, missing))


def _write_switched(model: ModelSpec) -> Config:
    switch = {"use_sliding_window": model.window is not None, "sliding_window": model.window}
    return switch | {"max_window_layers": model.layers, "layer_types": _types(model)}


def _read_switched(config: Config) -> Config:
    if not config.get("use_sliding_window"):
        return {}
    return _read_types(config, lambda layer: SLIDING if layer >= config.get("max_window_layers", 28) else FULL)


WINDOW_SWITCHED = _aspect("use_sliding_window sliding_window max_window_layers layer_types", _write_switched, _read_switched)
WINDOW_SWITCHED_IN_ALL = _aspect(
    "use_sliding_window sliding_window",
    lambda model: {"use_sliding_window": model.window is not None, "sliding_window": model.window},
    lambda config: {"window": config["sliding_window"]} if config.get("use_sliding_window") else {},
)


def _read_unturned(config: Config) -> Config:
    count, every = config["num_hidden_layers"], config.get("no_rope_layer_interval", 4)
    turned = config.get("no_rope_layers") or [int((layer + 1) % every != 0) for layer in range(count)]
    return {"nope_every": every_of([not has for has in turned], "layers without RoPE")}


NO_ROPE = _aspect(
    "no_rope_layers no_rope_layer_interval",
    lambda model: {"no_rope_layers": [int(model.has_positions(layer)) for layer in range(model.layers)]},
    _read_unturned,
)
"""1 where RoPE turns, in spite of the name."""


# --- biases, softcaps, blocks -------------------------------------------------------------------------------------------


def _read_biases(config: Config) -> Config:
    attention, ffn = bool(config.get("attention_bias")), bool(config.get("mlp_bias"))
    if attention != ffn:
        raise Foreign(f"attention_bias = {attention}, mlp_bias = {ffn}")
    return {"bias": "all" if attention else "none"}


BIASES = _aspect(
    "attention_bias mlp_bias",
    lambda model: {"attention_bias": model.bias == "all", "mlp_bias": model.bias == "all"},
    _read_biases,
)
SOFTCAPS = _aspect(
    "final_logit_softcapping attn_logit_softcapping",
    lambda model: {"final_logit_softcapping": model.logit_softcap, "attn_logit_softcapping": model.attention_softcap},
    lambda config: {
        "logit_softcap": config.get("final_logit_softcapping", 30.0),
        "attention_softcap": config.get("attn_logit_softcapping", 50.0),
    },
)


def _read_query_scale(config: Config) -> Config:
    if config.get("query_pre_attn_scalar", config["head_dim"]) != config["head_dim"]:
        raise Foreign("query_pre_attn_scalar that is not head_dim")
    return {}


QUERY_SCALE = _aspect("query_pre_attn_scalar", lambda model: {"query_pre_attn_scalar": model.head_width}, _read_query_scale)


def parallel(block: str, *, missing: bool) -> Aspect:
    """A switch between ``block`` and the sequential one; ``missing``: where a file has none."""
    return _aspect(
        "use_parallel_residual",
        lambda model: {"use_parallel_residual": model.block == block},
        lambda config: {"block": block if config.get("use_parallel_residual", missing) else "pre"},
    )


# --- experts ------------------------------------------------------------------------------------------------------------


def _experts(model: ModelSpec) -> ExpertsSpec:
    assert model.experts is not None
    return model.experts


MIXTRAL = _aspect(
    "num_local_experts num_experts_per_tok intermediate_size",
    lambda model: {
        "num_local_experts": _experts(model).experts,
        "num_experts_per_tok": _experts(model).top_k,
        "intermediate_size": _experts(model).width,
    },
    lambda config: {
        "ffn_width": config["intermediate_size"],
        "experts": ExpertsSpec(config["num_local_experts"], config["num_experts_per_tok"], config["intermediate_size"]),
    },
)
OLMOE = _aspect(
    "num_experts num_experts_per_tok intermediate_size norm_topk_prob",
    lambda model: {
        "num_experts": _experts(model).experts,
        "num_experts_per_tok": _experts(model).top_k,
        "intermediate_size": _experts(model).width,
        "norm_topk_prob": _experts(model).normalise,
    },
    lambda config: {
        "ffn_width": config["intermediate_size"],
        "experts": ExpertsSpec(
            config["num_experts"],
            config["num_experts_per_tok"],
            config["intermediate_size"],
            normalise=config.get("norm_topk_prob", False),
        ),
    },
)


def _read_qwen3_moe(config: Config) -> Config:
    plain, step = config.get("mlp_only_layers") or [], config.get("decoder_sparse_step", 1)
    routed = [layer not in plain and (layer + 1) % step == 0 for layer in range(config["num_hidden_layers"])]
    dense, every = _pattern(routed)
    options = {"dense_layers": dense, "every": every, "normalise": config.get("norm_topk_prob", False)}
    count = config.get("num_local_experts") or config["num_experts"]
    return {"experts": ExpertsSpec(count, config["num_experts_per_tok"], config["moe_intermediate_size"], **options)}


def _pattern(routed: list[bool]) -> tuple[int, int]:
    """dense_layers and every, of layers that have experts or not."""
    for every in range(1, len(routed) + 1):
        for dense in range(len(routed)):
            if routed == [layer >= dense and (layer - dense + 1) % every == 0 for layer in range(len(routed))]:
                return dense, every
    raise Foreign("layers with experts that do not repeat")


QWEN3_MOE = _aspect(
    "num_experts num_local_experts num_experts_per_tok moe_intermediate_size norm_topk_prob mlp_only_layers decoder_sparse_step",
    lambda model: {
        "num_experts": _experts(model).experts,
        "num_experts_per_tok": _experts(model).top_k,
        "moe_intermediate_size": _experts(model).width,
        "norm_topk_prob": _experts(model).normalise,
        "mlp_only_layers": [layer for layer in range(model.layers) if not model.has_experts(layer)],
        "decoder_sparse_step": 1,
    },
    _read_qwen3_moe,
)


def _write_deepseek(model: ModelSpec) -> Config:
    experts, latent = _experts(model), model.latent
    assert latent is not None
    return {
        "q_lora_rank": latent.query_rank,
        "kv_lora_rank": latent.kv_rank,
        "qk_nope_head_dim": latent.nope_width,
        "qk_rope_head_dim": latent.rope_width,
        "v_head_dim": latent.value_width,
        "rope_interleave": True,
        "n_routed_experts": experts.experts,
        "n_shared_experts": experts.shared,
        "num_experts_per_tok": experts.top_k,
        "moe_intermediate_size": experts.width,
        "first_k_dense_replace": experts.dense_layers,
        "n_group": experts.groups if experts.groups_per_token else 1,
        "topk_group": experts.groups_per_token or 1,
        "norm_topk_prob": experts.normalise,
        "routed_scaling_factor": experts.scale,
        "num_nextn_predict_layers": model.mtp_layers,
    }


def _read_deepseek(config: Config) -> Config:
    if not config.get("rope_interleave", True):
        raise Foreign("rope_interleave = False")
    limited = config["n_group"] > 1
    latent = LatentSpec(*(config[key] for key in _LATENT_KEYS))
    experts = ExpertsSpec(
        config["n_routed_experts"],
        config["num_experts_per_tok"],
        config["moe_intermediate_size"],
        shared=config["n_shared_experts"],
        dense_layers=config["first_k_dense_replace"],
        router_bias=True,
        groups=config["n_group"],
        groups_per_token=config["topk_group"] if limited else 0,
        score="sigmoid",
        normalise=config.get("norm_topk_prob", True),
        scale=config["routed_scaling_factor"],
    )
    heads, width = config["num_attention_heads"], latent.key_width
    options = {"kv_heads": heads, "head_width": width, "mtp_layers": config.get("num_nextn_predict_layers", 1)}
    return {"latent": latent, "experts": experts, **options}


_LATENT_KEYS = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
DEEPSEEK = _aspect(
    " ".join(_LATENT_KEYS)
    + " rope_interleave n_routed_experts n_shared_experts num_experts_per_tok moe_intermediate_size first_k_dense_replace n_group"
    + " topk_group norm_topk_prob routed_scaling_factor num_nextn_predict_layers num_mtp_layers num_key_value_heads head_dim"
    + " qk_head_dim",
    _write_deepseek,
    _read_deepseek,
)

"""What a key means that a ``config.json`` leaves out: the default of the class of ``transformers``, by model type.

Vocabulary, width, layers and heads are asked of every file. Of RoPE and of the kinds of layers the aspects know what is left out.
A test compares the table with the classes themselves.
"""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

# None: as many key and value heads as heads, a head of width / heads, an inner width of 4 x width
_SILU: Config = {"hidden_act": "silu", "tie_word_embeddings": False, "num_key_value_heads": None}
_FINE, _COARSE = {"rms_norm_eps": 1e-6}, {"rms_norm_eps": 1e-5}
_SWITCHED = {"use_sliding_window": False, "sliding_window": 4096}
_NO_BIAS = {"attention_bias": False}
_BIASES = _NO_BIAS | {"mlp_bias": False}

DEFAULTS: dict[str, Config] = {
    "llama": _SILU | _FINE | _BIASES | {"intermediate_size": 11008, "head_dim": None},
    "qwen3": _SILU
    | _FINE
    | _NO_BIAS
    | _SWITCHED
    | {"intermediate_size": 22016, "num_key_value_heads": 32, "head_dim": 128, "max_window_layers": 28},
    "mistral": _SILU | _FINE | {"intermediate_size": 14336, "num_key_value_heads": 8, "head_dim": None, "sliding_window": 4096},
    "ministral": _SILU | _FINE | {"intermediate_size": 14336, "num_key_value_heads": 8, "head_dim": None, "sliding_window": 4096},
    "qwen2": _SILU | _FINE | _SWITCHED | {"intermediate_size": 22016, "num_key_value_heads": 32, "max_window_layers": 28},
    "olmo2": _SILU | _COARSE | _NO_BIAS | {"intermediate_size": 11008},
    "olmo3": _SILU | _COARSE | _NO_BIAS | {"intermediate_size": 11008, "sliding_window": 4096},
    "smollm3": _SILU
    | _FINE
    | _BIASES
    | {
        "intermediate_size": 11008,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "no_rope_layer_interval": 4,
    },
    "mixtral": _SILU
    | _COARSE
    | {
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "head_dim": None,
        "sliding_window": None,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "qwen3_moe": _SILU
    | _FINE
    | _NO_BIAS
    | _SWITCHED
    | {
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
    },
    "olmoe": _SILU
    | _COARSE
    | _NO_BIAS
    | {
        "intermediate_size": 2048,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
        "clip_qkv": None,
    },
    "deepseek_v3": _SILU
    | _FINE
    | _NO_BIAS
    | {
        "intermediate_size": 18432,
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "rope_interleave": True,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
        "n_group": 8,
        "topk_group": 4,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 1,
    },
    "phi3": _SILU | _COARSE | {"intermediate_size": 8192, "sliding_window": None},
    "arcee": _SILU | _COARSE | _BIASES | {"intermediate_size": 18432, "head_dim": None, "hidden_act": "relu2"},
    "gpt2": {
        "n_inner": None,
        "n_positions": 1024,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "activation_function": "gelu_new",
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
    },
    "starcoder2": {
        "intermediate_size": 12288,
        "num_key_value_heads": 2,
        "norm_epsilon": 1e-5,
        "hidden_act": "gelu_pytorch_tanh",
        "use_bias": True,
        "sliding_window": None,
        "tie_word_embeddings": True,
    },
    "gpt_neox": {
        "intermediate_size": 24576,
        "layer_norm_eps": 1e-5,
        "hidden_act": "gelu",
        "attention_bias": True,
        "use_parallel_residual": True,
        "tie_word_embeddings": False,
    },
    "stablelm": _SILU
    | {
        "intermediate_size": 6912,
        "num_key_value_heads": 32,
        "layer_norm_eps": 1e-5,
        "use_qkv_bias": False,
        "qk_layernorm": False,
        "use_parallel_residual": False,
    },
    "cohere": _SILU
    | _NO_BIAS
    | {
        "intermediate_size": 22528,
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.0625,
        "use_qk_norm": False,
        "tie_word_embeddings": True,
    },
    "gemma2": _FINE
    | _NO_BIAS
    | {
        "intermediate_size": 9216,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
        "sliding_window": 4096,
        "use_bidirectional_attention": None,
        "tie_word_embeddings": True,
    },
}

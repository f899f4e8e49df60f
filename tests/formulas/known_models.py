"""Well-known architectures as ModelSpecs, by the names of the reference tables. Plain data: import it by path.

Sources: the models' own configuration files and papers. Numbers of parameters are not written here: they are what is tested.
"""

from __future__ import annotations

from typing import Any

from headway.recipe.spec import ExpertsSpec, LatentSpec, ModelSpec


def model(layers: int, width: int, heads: int, ffn_width: int, vocabulary: int, **others: Any) -> ModelSpec:
    """A decoder as Llama has it, unless ``others`` says so."""
    plain = {
        "kv_heads": heads,
        "head_width": width // heads,
        "rope_base": 10_000.0,
        "norm_epsilon": 1e-5,
        "qk_norm": False,
        "tied_embeddings": False,
        "init_std": 0.02,
    }
    sizes = {"layers": layers, "width": width, "heads": heads, "ffn_width": ffn_width, "vocabulary": vocabulary}
    return ModelSpec(**sizes, **{**plain, **others})


def gpt(layers: int, width: int, heads: int, vocabulary: int, **others: Any) -> ModelSpec:
    """GPT-2 and its like: layernorm and biases everywhere, GELU of 4 x width, learned positions, one embedding matrix."""
    kind = {"ffn": "gelu", "norm": "layernorm", "bias": "all", "position": "learned", "positions": 2048, "tied_embeddings": True}
    return model(layers, width, heads, 4 * width, vocabulary, **{**kind, **others})


OLMO2 = {"block": "post", "qk_norm": True, "qk_norm_over": "all"}
DEEPSEEK_LATENT = LatentSpec(query_rank=1536, kv_rank=512, nope_width=128, rope_width=64, value_width=128)
DEEPSEEK_V3 = model(
    61,
    7168,
    128,
    18432,
    129280,
    head_width=192,
    latent=DEEPSEEK_LATENT,
    experts=ExpertsSpec(experts=256, top_k=8, width=2048, shared=1, dense_layers=3, router_bias=True),
)
QWEN3_30B_A3B = model(
    48,
    2048,
    32,
    6144,
    151936,
    kv_heads=4,
    head_width=128,
    qk_norm=True,
    experts=ExpertsSpec(experts=128, top_k=8, width=768),
)

KNOWN = {
    "Llama-2-7B": model(32, 4096, 32, 11008, 32000),
    "Llama-2-13B": model(40, 5120, 40, 13824, 32000),
    "Llama-2-70B": model(80, 8192, 64, 28672, 32000, kv_heads=8),
    "Llama-3-8B": model(32, 4096, 32, 14336, 128256, kv_heads=8, rope_base=5e5),
    "Llama-3-70B": model(80, 8192, 64, 28672, 128256, kv_heads=8, rope_base=5e5),
    "Llama-3.1-405B": model(126, 16384, 128, 53248, 128256, kv_heads=8, rope_base=5e5),
    "TinyLlama-1.1B": model(22, 2048, 32, 5632, 32000, kv_heads=4),
    "GPT-NeoX-20B": gpt(44, 6144, 64, 50432, block="parallel-two-norms", position="rope", positions=0, tied_embeddings=False),
    "BLOOM-176B": gpt(70, 14336, 112, 250880, position="none", positions=0, embedding_norm=True),
    "GPT-3-175B(Megatron V=51200)": gpt(96, 12288, 96, 51200),
    "MT-NLG-530B": gpt(105, 20480, 128, 51200),
    "Megatron-1T": gpt(128, 25600, 160, 51200),
    "MPT-7B(s2048)": gpt(32, 4096, 32, 50368),
    "MPT-30B(s2048)": gpt(48, 7168, 56, 50368),
    "MPT-70B(s2048)": gpt(80, 8192, 64, 50368),
    "Nemotron-4-340B": model(96, 18432, 96, 73728, 256000, kv_heads=8, ffn="relu2", norm="layernorm", bias="norm"),
    "OLMo-2-7B": model(32, 4096, 32, 11008, 100352, **OLMO2),
    "OLMo-2-13B": model(40, 5120, 40, 13824, 100352, **OLMO2),
    "OLMo-2-32B": model(64, 5120, 40, 27648, 100352, kv_heads=8, **OLMO2),
    "SmolLM3-3B": model(36, 2048, 16, 11008, 128256, kv_heads=4, tied_embeddings=True),
    "GPT-2-124M(nanoGPT)": gpt(12, 768, 12, 50257, positions=1024),
    "PaLM-540B(parallel,MQA,no bias)": model(
        118,
        18432,
        48,
        73728,
        256000,
        kv_heads=1,
        head_width=256,
        tied_embeddings=True,
        norm="layernorm",
        block="parallel-two-norms",
    ),
    "DeepSeek-V3": DEEPSEEK_V3,
    "Qwen3-30B-A3B": QWEN3_30B_A3B,
}
"""GPT-NeoX's vocabulary is the padded one of its checkpoint. Megatron's models have 2,048 learned positions. PaLM's
paper leaves open whether attention and feed-forward share a norm: here they do not, as in the reference table."""

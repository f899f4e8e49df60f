"""Published step times beyond the reference data: newer chips, experts, TPUs. Nothing is fitted on them.

    Megatron-Bridge   performance summaries 25.11 and 26.02 of its documentation: tokens per second and device, with layouts
    NeMo AutoModel    its performance summary: seconds of a step
    fms-fsdp          foundation-model-stack/fms-fsdp, README: tokens per second and device
    torchtitan        docs of 2024: A100 without compilation of collectives
    MaxText           AI-Hypercomputer/maxtext and tpu-recipes: seconds of a step, or tokens per second and chip

What is published is the throughput and most of the layout. Recomputation is not, where NVIDIA's recipes are concerned: it is the
least that fits by this planner's own memory model. NVIDIA's recipes hide tensor-parallel collectives and sum gradients in bf16.
MaxText's own policies of what to keep stand as "ops" or "full", whichever is nearer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from headway.formulas.chips import find_chip
from headway.plan.memory.rank_memory import peak_memory
from headway.plan.work import Cluster, Implementation, Layout, Pipeline, Recompute, Work
from headway.recipe.spec import ExpertsSpec, LatentSpec, ModelSpec
from plan_rows import LLAMA, Row, model

LATENT = LatentSpec(1536, 512, 128, 64, 128)
V3 = model(
    61,
    7168,
    128,
    129_280,
    head_width=192,
    ffn_width=18_432,
    latent=LATENT,
    experts=ExpertsSpec(256, 8, 2048, 1, 3, 1, True, 8, 4),
)
KIMI = model(
    61, 7168, 64, 163_840, head_width=192, ffn_width=18_432, latent=LATENT, experts=ExpertsSpec(384, 8, 2048, 1, 1, 1, True)
)
QWEN_30B = model(48, 2048, 32, 151_936, kv_heads=4, head_width=128, ffn_width=6144, experts=ExpertsSpec(128, 8, 768))
QWEN_235B = model(94, 4096, 64, 151_936, kv_heads=4, head_width=128, ffn_width=12_288, experts=ExpertsSpec(128, 8, 1536))
WINDOWED: dict[str, Any] = {"kv_heads": 8, "head_width": 64, "ffn_width": 2880, "window": 128, "full_attention_every": 2}
OSS_120B = model(36, 2880, 64, 201_088, experts=ExpertsSpec(128, 4, 2880), **WINDOWED)
OSS_20B = model(24, 2880, 64, 201_088, experts=ExpertsSpec(32, 4, 2880), **WINDOWED)
MIXTRAL = model(32, 4096, 32, 32_000, kv_heads=8, ffn_width=14_336, experts=ExpertsSpec(8, 2, 14_336))
LLAMA_2_70B = model(80, 8192, 64, 32_000, kv_heads=8, ffn_width=28_672)
MODELS: dict[str, ModelSpec] = {
    "Llama 3 8B": LLAMA["8B"],
    "Llama 3 70B": LLAMA["70B"],
    "Llama 3 405B": LLAMA["405B"],
    "Llama 2 70B": LLAMA_2_70B,
    "DeepSeek-V3": V3,
    "Kimi K2": KIMI,
    "Qwen3 30B": QWEN_30B,
    "Qwen3 235B": QWEN_235B,
    "GPT-OSS 120B": OSS_120B,
    "GPT-OSS 20B": OSS_20B,
    "Mixtral 8x7B": MIXTRAL,
}

BRIDGE = """
H100-SXM  Llama_3_8B    8     float8    128   1 8192 3  1 1  1 1  1   14451
H100-SXM  Llama_3_70B   64    float8    128   1 8192 1  4 8  1 5  1   1602
H100-SXM  Llama_3_70B   64    float8    256   1 8192 1  4 8  1 5  1   1621
H100-SXM  Llama_3_405B  1024  float8    512   1 8192 1  8 8  2 8  1   292
H100-SXM  Llama_3_405B  1024  float8    1536  1 8192 1  8 8  2 8  1   311
H100-SXM  DeepSeek-V3   1024  float8    8192  1 4096 1  2 8  1 4  64  1297
H100-SXM  Qwen3_30B     16    float8    512   2 4096 1  1 2  1 24 8   5275
H100-SXM  Qwen3_235B    256   float8    2048  1 4096 1  2 8  1 4  16  1575
H100-SXM  GPT-OSS_120B  64    bfloat16  1280  1 4096 1  1 4  1 1  8   5993
B200-SXM  Llama_3_8B    8     float8    128   2 8192 1  1 1  1 1  1   30624
B200-SXM  Llama_3_405B  128   float8    64    1 8192 1  4 8  2 8  1   661
B200-SXM  DeepSeek-V3   256   float8    4096  1 4096 1  1 16 1 1  8   2689
B200-SXM  Qwen3_30B     8     float8    512   1 4096 1  1 1  1 1  8   9691
B200-SXM  Qwen3_235B    256   float8    8192  1 4096 1  1 8  1 1  8   3805
B200-SXM  GPT-OSS_120B  64    bfloat16  1280  4 4096 1  1 1  1 1  64  8047
B300-SXM  Qwen3_30B     8     float8    512   8 4096 1  1 1  1 1  8   29521
GB200     Llama_3_8B    8     float8    128   2 8192 1  1 1  1 1  1   31508
GB200     Llama_3_70B   64    float8    256   2 8192 3  1 1  1 1  1   4312
GB200     Llama_3_405B  256   float8    1536  1 8192 1  4 16 1 4  1   813
GB200     DeepSeek-V3   256   bfloat16  4096  1 4096 1  1 4  1 4  64  3139
GB200     DeepSeek-V3   256   float8    4096  1 4096 1  1 4  1 4  64  3955
GB200     Qwen3_30B     8     float8    512   4 4096 1  1 1  1 1  8   26084
GB200     GPT-OSS_120B  64    bfloat16  1280  4 4096 1  1 1  1 1  64  15784
GB300     Llama_3_8B    8     float8    128   2 8192 1  1 1  1 1  1   37556
GB300     Llama_3_70B   64    float8    256   2 8192 3  1 1  1 1  1   5003
GB300     Llama_3_405B  256   float8    1536  1 8192 1  2 8  2 4  1   999
GB300     DeepSeek-V3   256   bfloat16  4096  1 4096 1  1 2  1 4  32  3848
"""
"""chip, model, devices, precision, batch, micro-batch, sequence, zero, tp, pp, cp, chunks, ep, tokens per second and device.
Qwen3 235B on H100 ran with ep 32 and experts not cut by tp, which a layout here cannot say: ep 16."""

AUTOMODEL = """
DeepSeek-V3   1024 8192 1 4 8 64 37.87
DeepSeek-V3   256  512  1 4 8 64 8.18
Kimi_K2       256  512  1 8 4 32 8.86
Qwen3_30B     8    512  4 1 1 8  21.773
GPT-OSS_20B   8    256  2 1 1 8  10.04
GPT-OSS_120B  64   512  2 1 1 64 4.30
"""
"""model, H100s, batch, micro-batch, pp, chunks, ep, seconds; bf16, sequences of 4,096."""

MAXTEXT = """
TPU-v6e Llama_3_8B    256 8192 4  ops  bfloat16 7208
TPU-v6e Llama_3_70B   256 8192 4  full bfloat16 960
TPU-v6e Llama_3_405B  512 8192 1  full bfloat16 149.5
TPU-v6e Mixtral_8x7B  256 4096 12 full bfloat16 3899
TPU-v5p Llama_3_405B  512 8192 2  full bfloat16 124.6
TPU-v5p Llama_2_70B   512 4096 4  full bfloat16 692
TPU-v7x Llama_3_70B   64  8192 4  full bfloat16 2686
TPU-v7x Llama_3_70B   64  8192 4  full float8   4132
TPU-v7x Llama_3_405B  256 8192 6  full bfloat16 499.8
TPU-v7x Llama_3_405B  256 8192 6  full float8   763.6
"""
"""chip, model, chips, sequence, sequences per chip, recomputation, precision, tokens per second and chip."""

FSDP = """
A100-SXM-80GB 128 6.25e9 7B  2 none 3700
A100-SXM-80GB 128 6.25e9 13B 2 ops  1800
A100-SXM-80GB 128 6.25e9 34B 2 full 700
H100-SXM      96  12.5e9 7B  2 none 7500
H100-SXM      96  12.5e9 13B 2 ops  3800
H100-SXM      96  12.5e9 34B 2 full 1550
"""
"""chip, devices, bytes per second of network and device, model, micro-batch, recomputation, tokens per second and device."""

GRANITE = {
    "7B": model(32, 4096, 32, 32_000, ffn_width=11_008),
    "13B": model(40, 5120, 40, 32_000, ffn_width=13_824),
    "34B": model(48, 8192, 64, 32_000, kv_heads=8, ffn_width=22_016),
}
NVIDIA = Implementation(overlap_tp=True)


def outside() -> list[Row]:
    return [*_bridge(), *_automodel(), *_fsdp(), *_torchtitan_2024(), *_maxtext()]


def _lines(table: str) -> Iterator[list[str]]:
    yield from (line.split() for line in table.strip().splitlines())


def _cluster(chip: str, chips: int, network: float | None = None) -> Cluster:
    found = find_chip(chip)
    beyond = network or found.network_bandwidth or 1e9  # TPU-v7x: these slices are one domain
    return Cluster(chip=found, chips=chips, domain=found.domain, network=beyond)


def _row(name: str, work: Work, layout: Layout, where: Cluster, seconds: float, fits: bool = False) -> Row:
    """``fits``: with the least recomputation that fits, where the source names none."""
    family = "experts" if work.model.experts else "dense"
    used = _least(work, layout, where) if fits else layout
    chip = where.chip.name
    return Row(
        source="outside",
        name=f"{name} {chip}",
        chip=chip,
        family=family,
        work=work,
        layout=used,
        cluster=where,
        seconds=seconds,
    )


def _least(work: Work, layout: Layout, where: Cluster) -> Layout:
    for recompute in (Recompute.NONE, Recompute.LIGHT, Recompute.OPS):
        tried = replace(layout, recompute=recompute)
        if peak_memory(work, tried, where).total <= where.chip.memory_bytes:
            return tried
    return replace(layout, recompute=Recompute.FULL)


def _bridge() -> Iterator[Row]:
    for chip, name, devices, precision, batch, micro, sequence, zero, tp, pp, cp, chunks, ep, rate in _lines(BRIDGE):
        world = int(devices)
        layout = Layout(
            tp=int(tp),
            pp=int(pp),
            cp=int(cp),
            ep=int(ep),
            dp_shard=world // (int(tp) * int(pp) * int(cp)),
            virtual=int(chunks),
            pipeline=Pipeline.INTERLEAVED if int(chunks) > 1 else Pipeline.ONE_F_ONE_B,
            micro_batch=int(micro),
            zero=int(zero),
        )
        spec = MODELS[name.replace("_", " ")]
        work = Work(
            model=spec, sequence=int(sequence), batch=int(batch), precision=precision, implementation=NVIDIA, gradient_bytes=2
        )
        seconds = work.tokens / (float(rate) * world)
        label = f"Megatron-Bridge {name} x {world} {precision} tp {tp} pp {pp} cp {cp} ep {ep}, batch {batch},"
        yield _row(label, work, layout, _cluster(chip, world), seconds, fits=True)


def _automodel() -> Iterator[Row]:
    for name, devices, batch, micro, pp, chunks, ep, seconds in _lines(AUTOMODEL):
        order = Pipeline.INTERLEAVED if int(chunks) > 1 else Pipeline.ONE_F_ONE_B
        layout = Layout(
            pp=int(pp), virtual=int(chunks), pipeline=order, ep=int(ep), dp_shard=int(devices) // int(pp), micro_batch=int(micro)
        )
        work = Work(model=MODELS[name.replace("_", " ")], sequence=4096, batch=int(batch))
        label = f"AutoModel {name} x {devices} pp {pp} ep {ep},"
        yield _row(label, work, layout, _cluster("H100-SXM", int(devices)), float(seconds), fits=True)


def _fsdp() -> Iterator[Row]:
    for chip, devices, network, size, micro, recompute, rate in _lines(FSDP):
        world, replicas = int(devices), int(devices) // 8 if size == "7B" else 1
        layout = Layout(dp_shard=world // replicas, dp_replicate=replicas, micro_batch=int(micro), recompute=Recompute(recompute))
        work = Work(model=GRANITE[size], sequence=4096, batch=int(micro) * world, gradient_bytes=2)
        seconds = work.tokens / (float(rate) * world)
        yield _row(f"fms-fsdp {size} x {world},", work, layout, _cluster(chip, world, float(network)), seconds)


def _torchtitan_2024() -> Iterator[Row]:
    for size, recompute, rate in (("8B", Recompute.OPS, 2973), ("70B", Recompute.FULL, 331)):
        layout = Layout(dp_shard=64, recompute=recompute)
        work = Work(model=LLAMA[size], sequence=8192, batch=64)
        seconds = work.tokens / (rate * 64)
        yield _row(f"torchtitan 2024 {size} x 64,", work, layout, _cluster("A100-SXM-80GB", 64), seconds)


def _maxtext() -> Iterator[Row]:
    for chip, name, devices, sequence, each, recompute, precision, rate in _lines(MAXTEXT):
        world = int(devices)
        layout = Layout(dp_shard=world, micro_batch=int(each), recompute=Recompute(recompute))
        spec = MODELS[name.replace("_", " ")]
        work = Work(model=spec, sequence=int(sequence), batch=int(each) * world, precision=precision)
        seconds = work.tokens / (float(rate) * world)
        yield _row(f"MaxText {name} x {world} {precision},", work, layout, _cluster(chip, world), seconds)

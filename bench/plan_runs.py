"""Whole published runs: days by the planner against days as published, each with its convention.

    healthy      days of training at the published or printed rate, nothing else
    end-to-end   calendar days or device-hours of the whole run: restarts, saves and evaluations are in them

Where the layout is published it is used, else (said so) FSDP or DDP over all devices with the least recomputation that fits. An
end-to-end time is the healthy one over ``EFFECTIVE``; published runs say little more than that of their lost time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headway.plan.step.step_time import step_time
from headway.plan.work import Implementation, Layout, Pipeline, Recompute, Work
from headway.recipe.spec import ExpertsSpec, LatentSpec
from plan_rows import LLAMA, LLM_FOUNDRY, MEGATRON_2021, cluster, gpt, model

EFFECTIVE = 0.9
"""Llama 3: effective training time above 90 % over 54 days (arXiv 2407.21783)."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One published run. ``network`` is bytes per second per device, where the source says so."""

    name: str
    work: Work
    layout: Layout
    chip: str
    tokens: float
    days: float
    convention: str
    layout_from: str = "published"
    network: float | None = None


def predicted_days(run: Run) -> float:
    """Healthy days, or end-to-end ones."""
    where = cluster(run.chip, run.layout.world, run.network)
    healthy = step_time(run.work, run.layout, where).seconds * run.tokens / run.work.tokens / 86_400
    many = where.chips > where.domain
    return healthy / EFFECTIVE if run.convention == "end-to-end" and many else healthy


def _work(shape: Any, sequence: int, batch: int, **others: Any) -> Work:
    return Work(model=shape, sequence=sequence, batch=batch, **others)


def runs() -> list[Run]:
    """Tokens, batches, layouts and days of published_runs.csv; shapes from the papers."""
    return [*_frontier(), *_megatron(), *_code_and_web(), *_sharded()]


def _frontier() -> list[Run]:
    """Llama 3's 30.84 M device-hours, DeepSeek-V3's 2.664 M of pretraining, PaLM's 8.40 M chip-hours."""
    llama = Layout(tp=8, pp=16, dp_shard=128, virtual=8, pipeline=Pipeline.INTERLEAVED)
    latent, experts = LatentSpec(1536, 512, 128, 64, 128), ExpertsSpec(256, 8, 2048, 1, 3, 1, True, 8, 4)
    v3 = model(61, 7168, 128, 129_280, head_width=192, ffn_width=18_432, latent=latent, experts=experts)
    dual = Layout(pp=16, dp_shard=128, ep=64, zero=1, pipeline=Pipeline.ZERO_BUBBLE, recompute=Recompute.LIGHT)
    palm = model(118, 18_432, 48, 256_000, kv_heads=1, head_width=256, block="parallel", tied_embeddings=True)
    pods = Layout(tp=12, dp_replicate=2, dp_shard=256, micro_batch=4, recompute=Recompute.FULL)
    v3_work = _work(v3, 4096, 15_360, precision="float8", implementation=Implementation(overlap_ep=True))
    return [
        Run(
            name="Llama 3.1 405B",
            work=_work(LLAMA["405B"], 8192, 2048),
            layout=llama,
            chip="H100-SXM",
            tokens=15.6e12,
            days=30.84e6 / 16_384 / 24,
            convention="end-to-end",
        ),
        Run(
            name="DeepSeek-V3",
            work=v3_work,
            layout=dual,
            chip="H800-SXM",
            tokens=14.8e12,
            days=2.664e6 / 2048 / 24,
            convention="end-to-end",
        ),
        Run(
            name="PaLM 540B, as on 6,144 chips",
            work=_work(palm, 2048, 2048),
            layout=pods,
            chip="TPU-v4",
            tokens=0.78e12,
            days=8_404_992 / 6144 / 24,
            convention="end-to-end",
        ),
    ]


def _old(layers: int, width: int, heads: int, batch: int, **others: Any) -> Work:
    shape = gpt(layers, width, heads, **others)
    return _work(shape, 2048, batch, precision="float16", implementation=MEGATRON_2021, gradient_bytes=2)


def _megatron() -> list[Run]:
    """GPT-NeoX-20B (175,680 hours on 96), OPT-175B (33 days had nothing failed), GLM-130B (60 days)."""
    plain: dict[str, Any] = {"recompute": Recompute.FULL, "sequence_parallel": False}
    turned: dict[str, Any] = {"position": "rope", "positions": 0}
    neox = _old(44, 6144, 64, 1538, vocabulary=50_432, tied_embeddings=False, block="parallel-two-norms", **turned)
    opt = replace(_old(96, 12_288, 96, 992, vocabulary=50_272), implementation=replace(MEGATRON_2021, overlap=True))
    glm = _old(70, 12_288, 96, 4224, vocabulary=150_528, ffn_width=32_768, ffn="geglu", **turned)
    small = "A100-SXM-40GB"
    return [
        Run(
            name="GPT-NeoX-20B",
            work=neox,
            layout=Layout(tp=2, pp=4, dp_shard=12, micro_batch=4, zero=1, **plain),
            chip=small,
            tokens=0.472e12,
            days=76.25,
            convention="end-to-end",
        ),
        Run(
            name="OPT-175B, ideal",
            work=opt,
            layout=Layout(tp=8, dp_shard=124, micro_batch=8, **plain),
            chip="A100-SXM-80GB",
            tokens=0.3e12,
            days=33,
            convention="healthy",
        ),
        Run(
            name="GLM-130B",
            work=glm,
            layout=Layout(tp=4, pp=8, dp_shard=24, zero=1, **plain),
            chip=small,
            tokens=0.4e12,
            days=60,
            convention="end-to-end",
        ),
    ]


def _code_and_web() -> list[Run]:
    """Falcon on instances with 6.25 GB/s per device (EFA, 400 Gb/s a node); StarCoder at 8K with one key and value head."""
    parallel: dict[str, Any] = {"norm": "layernorm", "block": "parallel-two-norms", "tied_embeddings": True, "ffn": "gelu"}
    f40 = model(60, 8192, 128, 65_024, kv_heads=8, head_width=64, **parallel)
    f180 = model(80, 14_848, 232, 65_024, kv_heads=8, head_width=64, **parallel)
    code = gpt(40, 6144, 48, 49_152, kv_heads=1, positions=8192)
    flash_1 = Implementation(flash_generation=1)
    split: dict[str, Any] = {"sequence_parallel": False, "zero": 1}
    return [
        Run(
            name="Falcon-40B",
            work=_work(f40, 2048, 1152),
            layout=Layout(tp=8, pp=4, dp_shard=12, **split),
            chip="A100-SXM-40GB",
            tokens=1e12,
            days=60,
            convention="end-to-end",
            network=6.25e9,
        ),
        Run(
            name="Falcon-180B",
            work=_work(f180, 2048, 2048),
            layout=Layout(tp=8, pp=8, dp_shard=64, **split),
            chip="A100-SXM-40GB",
            tokens=3.5e12,
            days=7e6 / 4096 / 24,
            convention="end-to-end",
            network=6.25e9,
        ),
        Run(
            name="StarCoder-15.5B",
            work=_work(code, 8192, 512, implementation=flash_1),
            layout=Layout(tp=4, pp=4, dp_shard=32, **split),
            chip="A100-SXM-80GB",
            tokens=1e12,
            days=24,
            convention="end-to-end",
        ),
    ]


def _sharded() -> list[Run]:
    """MPT on 440 devices with FSDP; nanoGPT's GPT-2 on one node with DDP."""
    alibi: dict[str, Any] = {"ffn": "gelu", "norm": "layernorm", "position": "none", "tied_embeddings": True}
    foundry: dict[str, Any] = {"implementation": LLM_FOUNDRY, "gradient_bytes": 2}
    gpt2 = gpt(12, 768, 12, 50_304, bias="none", positions=1024)
    small = "A100-SXM-40GB"
    return [
        Run(
            name="MPT-7B",
            work=_work(model(32, 4096, 32, 50_432, **alibi), 2048, 1760, **foundry),
            layout=Layout(dp_shard=440, micro_batch=2),
            chip=small,
            tokens=1e12,
            days=9.5,
            convention="end-to-end",
            layout_from="FSDP, as published; micro-batch by memory",
        ),
        Run(
            name="MPT-30B",
            work=_work(model(48, 7168, 64, 50_432, **alibi), 2048, 1760, **foundry),
            layout=Layout(dp_shard=440, micro_batch=4, recompute=Recompute.FULL),
            chip=small,
            tokens=1e12,
            days=28.3,
            convention="end-to-end",
            layout_from="FSDP, as published; recomputation by memory",
        ),
        Run(
            name="GPT-2 124M (nanoGPT)",
            work=_work(gpt2, 1024, 480),
            layout=Layout(dp_replicate=8, micro_batch=12, zero=0),
            chip=small,
            tokens=0.2949e12,
            days=4,
            convention="end-to-end",
        ),
    ]

"""Published measurements as inputs of the planner's models: (work, layout, cluster) and the seconds that a step took.

    mosaic      FSDP on H100 and A100, 125M to 70B, 512 to 65,536 tokens       fitted on, judged with chip or family left out
    vtrain      Megatron on up to 512 A100, many layouts of four models        fitted on, judged with family or chip left out
    torchtitan  FSDP, TP, PP and CP on H100 and H200, bf16 and float8          never fitted on
    published   training runs and scaling tables whose layout is given         never fitted on

What a table leaves open is set by what its source's code did then, and said here; nothing is set by how well it predicts.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headway.formulas.chips import find_chip
from headway.formulas.flops import Convention, flops_per_token
from headway.formulas.megatron import megatron_hardware_flops
from headway.plan.work import Cluster, Implementation, Layout, Pipeline, Recompute, Work
from headway.recipe.spec import ModelSpec

MEGATRON_2021 = Implementation(flash=False, dropout=True, overlap=False)
"""No flash attention, dropout, gradients reduced after the last backward pass (arXiv 2104.04473, code of that time)."""
LLM_FOUNDRY = Implementation(fused=False, flash_generation=1)
"""Eager PyTorch under autocast; Triton's port of the first flash attention."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement. ``family`` is what is left out together."""

    source: str
    name: str
    chip: str
    family: str
    work: Work
    layout: Layout
    cluster: Cluster
    seconds: float
    convention: str = ""  # of the published rate that ``seconds`` was derived from; empty: seconds were published


def model(layers: int, width: int, heads: int, vocabulary: int, **others: Any) -> ModelSpec:
    """A decoder of the Llama kind, unless ``others`` says otherwise."""
    plain: dict[str, Any] = {
        "kv_heads": heads,
        "head_width": width // heads,
        "ffn_width": 4 * width,
        "rope_base": 1e4,
        "norm_epsilon": 1e-5,
        "qk_norm": False,
        "tied_embeddings": False,
        "init_std": 0.02,
    }
    return ModelSpec(layers=layers, width=width, heads=heads, vocabulary=vocabulary, **(plain | others))


def gpt(layers: int, width: int, heads: int, vocabulary: int = 51_200, **others: Any) -> ModelSpec:
    """GPT-2's decoder as Megatron trains it."""
    plain = {"ffn": "gelu", "norm": "layernorm", "bias": "all", "position": "learned", "positions": 2048, "tied_embeddings": True}
    return model(layers, width, heads, vocabulary, **(plain | others))


def cluster(chip: str, chips: int, network: float | None = None) -> Cluster:
    """``network``: bytes per second per chip, where the source says so."""
    found = find_chip(chip)
    bandwidth = network or found.network_bandwidth
    assert bandwidth is not None
    return Cluster(chip=found, chips=chips, domain=found.domain, network=bandwidth)


def table(reference: Path, name: str) -> Iterator[dict[str, str]]:
    with (reference / "plan" / name).open(newline="") as file:
        yield from csv.DictReader(file)


# --- what the constants are fitted on -------------------------------------------------------------------------------------


def mosaic(reference: Path) -> list[Row]:
    """Their FSDP reduces gradients in the precision of the products; SHARD_GRAD_OP keeps the weights whole."""
    return [_mosaic_row(line) for line in table(reference, "step_time_mosaic_h100_a100.csv")]


def _mosaic_row(line: dict[str, str]) -> Row:
    sequence, width, heads = int(line["seq_len"]), int(line["d_model"]), int(line["n_heads"])
    shape = {"ffn": "gelu", "norm": "layernorm", "position": "learned", "positions": sequence, "tied_embeddings": True}
    decoder = model(int(line["n_layers"]), width, heads, int(line["vocab"]), ffn_width=int(line["ffn"]), **shape)
    layout = Layout(
        dp_shard=int(line["n_gpus"]),
        micro_batch=int(line["micro_batch"]),
        zero=3 if line["sharding"] == "FULL_SHARD" else 2,
        recompute=Recompute.FULL if line["act_ckpt"] == "True" else Recompute.NONE,
    )
    work = Work(
        model=decoder,
        sequence=sequence,
        batch=int(line["global_batch_seqs"]),
        precision="float8" if "fp8" in line["precision"] else "bfloat16",
        implementation=LLM_FOUNDRY,
        gradient_bytes=2,
    )
    name = f"{line['model']} T {sequence} x {line['n_gpus']} {line['gpu']} {line['precision']}, micro-batch {line['micro_batch']}"
    where = cluster(line["gpu"], layout.world)
    seconds = float(line["step_time_s_derived"])
    return Row(
        source="mosaic",
        name=name,
        chip=line["gpu"],
        family=line["model"],
        work=work,
        layout=layout,
        cluster=where,
        seconds=seconds,
    )


VTRAIN_NETWORK = 100e9 / 8
"""Four HDR links a node: inter_node_bandwidth 800 Gb/s, use_checkpoint true in vTrain's config/validation/multi."""


def vtrain(reference: Path) -> list[Row]:
    return [_vtrain_row(line) for line in table(reference, "step_time_vtrain_multinode.csv")]


def _vtrain_row(line: dict[str, str]) -> Row:
    tp, dp, pp = int(line["tp"]), int(line["dp"]), int(line["pp"])
    layout = Layout(
        tp=tp,
        pp=pp,
        dp_replicate=dp,
        micro_batch=int(line["micro_batch"]),
        zero=0,
        recompute=Recompute.FULL,
        sequence_parallel=False,
    )
    decoder = gpt(int(line["layers"]), int(line["hidden"]), int(line["heads"]))
    work = Work(
        model=decoder,
        sequence=2048,
        batch=int(line["global_batch"]),
        precision="float16",
        implementation=MEGATRON_2021,
        gradient_bytes=2,
    )
    name = f"{line['params_b']}B tp {tp} pp {pp} dp {dp}, micro-batch {line['micro_batch']}"
    where = cluster("A100-SXM-80GB", layout.world, VTRAIN_NETWORK)
    seconds = float(line["iter_time_ms"]) / 1e3
    return Row(
        source="vtrain",
        name=name,
        chip="a100_80gb",
        family=f"{line['params_b']}B",
        work=work,
        layout=layout,
        cluster=where,
        seconds=seconds,
    )


# --- what nothing is fitted on --------------------------------------------------------------------------------------------

LLAMA = {
    "8B": model(32, 4096, 32, 128_256, kv_heads=8, ffn_width=14_336),
    "70B": model(80, 8192, 64, 128_256, kv_heads=8, ffn_width=28_672),
    "405B": model(126, 16_384, 128, 128_256, kv_heads=8, ffn_width=53_248),
}


def torchtitan(reference: Path) -> list[Row]:
    """Gradients are reduced in fp32; a batch goes through a pipeline in as many micro-batches as it has stages."""
    rows = [_titan_row(line) for line in table(reference, "torchtitan_bench.csv")]
    return [row for row in rows if row is not None]


def _titan_row(line: dict[str, str]) -> Row | None:
    sizes = {"TP": 1, "PP": 1, "CP": 1, "FSDP": 1}
    for word in line["parallelism"].split():
        axis = word.rstrip("0123456789")
        sizes[axis] = int(word[len(axis) :])
    technique, local = line["technique"], int(line["local_batch"])
    lower = technique.lower()
    layout = Layout(
        tp=sizes["TP"],
        pp=sizes["PP"],
        cp=sizes["CP"],
        dp_shard=sizes["FSDP"],
        micro_batch=local // sizes["PP"] if sizes["PP"] > 1 else local,
        virtual=2 if "interleaved" in lower else 1,
        pipeline=Pipeline.INTERLEAVED if "interleaved" in lower else Pipeline.ONE_F_ONE_B,
        recompute=Recompute.FULL if line["act_ckpt"] == "full" else Recompute.OPS,
    )
    size = line["model"].rpartition("-")[2]
    compiled = "compile" in lower or "TP" in line["parallelism"]  # the asynchronous-TP page compiles all of its rows
    how = Implementation(fused=compiled, overlap_tp="async" in lower, flash_generation=2)
    precision = "float8" if line["precision"].startswith("fp8") else "bfloat16"
    work = Work(
        model=LLAMA[size],
        sequence=int(line["seq_len"]),
        batch=local * sizes["FSDP"],
        precision=precision,
        implementation=how,
    )
    chip = "H200-SXM" if "H200" in line["hardware"] else "H100-SXM-HBM2e"
    seconds = work.tokens / (float(line["tok_s_gpu"]) * layout.world)
    name = f"{line['model']} {line['parallelism']} T {line['seq_len']} {technique} {line['precision']}"
    return Row(
        source="torchtitan",
        name=name,
        chip=chip,
        family=size,
        work=work,
        layout=layout,
        cluster=cluster(chip, layout.world),
        seconds=seconds,
    )


def rate_seconds(work: Work, flops_per_second: float, convention: Convention, again: float = 1.0) -> float:
    """Seconds of a step from a published rate of the whole cluster; ``again`` counts recomputation, as hardware rates do."""
    return again * work.tokens * flops_per_token(work.model, work.sequence, convention) / flops_per_second


def megatron_hardware_seconds(work: Work, flops_per_second: float) -> float:
    """By the papers' own count with full recomputation."""
    return megatron_hardware_flops(work.model, work.sequence, work.batch) / flops_per_second


def published() -> list[Row]:
    """Layouts and rates of published_runs.csv, with the shapes from the papers themselves."""
    return [
        *_scaling_2021(),
        *_zero_3_2021(),
        *_sequence_parallel(),
        *_mt_nlg(),
        *_llama(),
        *_nemotron(),
        *_megascale(),
        *_others(),
    ]


def _old(layers: int, width: int, heads: int, batch: int, **others: Any) -> Work:
    return Work(
        model=gpt(layers, width, heads, **others),
        sequence=2048,
        batch=batch,
        precision="float16",
        implementation=MEGATRON_2021,
        gradient_bytes=2,
    )


def _megatron_layout(chips: int, tp: int, pp: int, micro_batch: int = 1, **others: Any) -> Layout:
    plain: dict[str, Any] = {
        "zero": 0,
        "recompute": Recompute.FULL,
        "sequence_parallel": False,
        "dp_replicate": chips // (tp * pp),
    }
    return Layout(tp=tp, pp=pp, micro_batch=micro_batch, **(plain | others))


def _row(
    name: str, family: str, chip: str, work: Work, layout: Layout, seconds: float, convention: str = "", **others: Any
) -> Row:
    where = cluster(chip, layout.world, **others)
    return Row(
        source="published",
        name=name,
        chip=chip,
        family=family,
        work=work,
        layout=layout,
        cluster=where,
        seconds=seconds,
        convention=convention,
    )


A100 = "A100-SXM-80GB"
SCALING = [  # layers, width, heads, tp, pp, chips, batch, micro-batch, hardware TFLOP/s per chip (arXiv 2104.04473, table 1)
    (24, 2304, 24, 1, 1, 32, 512, 16, 137),
    (30, 3072, 32, 2, 1, 64, 512, 16, 138),
    (36, 4096, 32, 4, 1, 128, 512, 16, 142),
    (40, 6144, 48, 8, 1, 256, 1024, 8, 135),
    (48, 8192, 64, 8, 2, 512, 1536, 4, 138),
    (60, 10240, 80, 8, 4, 1024, 1792, 2, 140),
    (80, 12288, 96, 8, 8, 1536, 2304, 1, 148),
    (96, 16384, 128, 8, 16, 1920, 2160, 1, 155),
    (105, 20480, 128, 8, 35, 2520, 2520, 1, 163),
    (128, 25600, 160, 8, 64, 3072, 3072, 1, 163),
]
"""Micro-batches are not printed in the table: those of the later rows are 1, the earlier ones as large as fits."""


def _scaling_2021() -> Iterator[Row]:
    for layers, width, heads, tp, pp, chips, batch, micro_batch, rate in SCALING:
        work = _old(layers, width, heads, batch)
        seconds = megatron_hardware_seconds(work, rate * 1e12 * chips)
        name = f"Megatron 2021 {layers} x {width} on {chips}"
        yield _row(
            name, "megatron", A100, work, _megatron_layout(chips, tp, pp, micro_batch), seconds, "hardware, full attention"
        )
    for layers, width, heads, pp, runs in (
        (96, 12288, 96, 12, ((384, 1536, 153), (768, 1536, 149), (1536, 1536, 141))),
        (105, 20480, 128, 35, ((560, 2240, 171), (1120, 2240, 167), (2240, 2240, 159))),
    ):
        for chips, batch, rate in runs:
            work = _old(layers, width, heads, batch)
            seconds = megatron_hardware_seconds(work, rate * 1e12 * chips)
            name = f"Megatron 2021 PTD {layers} x {width} on {chips}"
            yield _row(name, "megatron", A100, work, _megatron_layout(chips, 8, pp), seconds, "hardware, full attention")


def _zero_3_2021() -> Iterator[Row]:
    """DeepSpeed of 2021, gathering tensor by tensor: kept although nothing here knows that implementation."""
    for layers, width, heads, runs in (
        (96, 12288, 96, ((384, 1536, 4, 144), (768, 1536, 2, 88), (1536, 1536, 1, 44))),
        (105, 20480, 128, ((640, 2560, 4, 138), (1120, 2240, 2, 98), (2240, 2240, 1, 48))),
    ):
        for chips, batch, micro_batch, rate in runs:
            work = replace(_old(layers, width, heads, batch), implementation=replace(MEGATRON_2021, overlap=True))
            layout = Layout(dp_shard=chips, micro_batch=micro_batch, recompute=Recompute.FULL)
            seconds = megatron_hardware_seconds(work, rate * 1e12 * chips)
            name = f"ZeRO-3 2021 {layers} x {width} on {chips}"
            yield _row(name, "zero-3 of 2021", A100, work, layout, seconds, "hardware, full attention")


def _sequence_parallel() -> Iterator[Row]:
    """arXiv 2205.05198, table 5: seconds as printed."""
    for layers, width, heads, pp, virtual, chips, batch, micro_batch, full, selective in (
        (48, 6144, 64, 1, 1, 8, 4, 4, 1.42, 1.10),
        (96, 12288, 96, 8, 3, 64, 64, 1, 18.13, 13.75),
        (105, 20480, 128, 35, 3, 280, 280, 1, 49.05, 37.83),
        (128, 25600, 160, 64, 1, 512, 512, 1, 94.42, 71.49),
    ):
        order = Pipeline.INTERLEAVED if virtual > 1 else Pipeline.ONE_F_ONE_B
        for recompute, split, seconds in ((Recompute.FULL, False, full), (Recompute.SELECTIVE, True, selective)):
            layout = _megatron_layout(
                chips, 8, pp, micro_batch, virtual=virtual, pipeline=order, recompute=recompute, sequence_parallel=split
            )
            name = f"Korthikanti {layers} x {width}, {recompute} recomputation"
            yield _row(name, "korthikanti", A100, _old(layers, width, heads, batch), layout, seconds)


def _mt_nlg() -> Iterator[Row]:
    for chips, seconds in ((2240, 60.1), (2800, 50.2), (3360, 44.4)):
        work = replace(_old(105, 20480, 128, 1920), precision="bfloat16")
        yield _row(f"MT-NLG 530B on {chips}", "mt-nlg", A100, work, _megatron_layout(chips, 8, 35), seconds)


def _llama() -> Iterator[Row]:
    """arXiv 2407.21783, table 4: model TFLOP/s, taken as causal; weights are kept whole through the step, 8 chunks a rank."""
    for name, chips, dp, cp, sequence, batch, rate in (
        ("8K chips", 8192, 64, 1, 8192, 2048, 430),
        ("16K chips", 16384, 128, 1, 8192, 2048, 400),
        ("128K context", 16384, 8, 16, 131_072, 128, 380),
    ):
        work = Work(model=LLAMA["405B"], sequence=sequence, batch=batch)
        layout = Layout(tp=8, pp=16, cp=cp, dp_shard=dp, virtual=8, pipeline=Pipeline.INTERLEAVED)
        seconds = rate_seconds(work, rate * 1e12 * chips, Convention.CAUSAL)
        yield _row(f"Llama 3 405B, {name}", "llama 3", "H100-SXM", work, layout, seconds, "model, causal")


def _nemotron() -> Iterator[Row]:
    """Seconds as printed; the recipes hide tensor-parallel collectives and reduce gradients in bf16."""
    shape = model(96, 18_432, 96, 256_000, kv_heads=8, ffn="relu2", norm="layernorm")
    for chips, batch, seconds in ((256, 64, 4.31), (128, 32, 4.77)):
        how = Implementation(overlap_tp=True)
        work = Work(model=shape, sequence=4096, batch=batch, implementation=how, gradient_bytes=2)
        layout = Layout(tp=8, pp=8, dp_shard=chips // 64, virtual=12, pipeline=Pipeline.INTERLEAVED, zero=1)
        yield _row(f"Nemotron-4 340B on {chips}", "nemotron", "H100-SXM", work, layout, seconds)


def _megascale() -> Iterator[Row]:
    """arXiv 2402.15627, table 2: model rates with full attention. MegaScale's model has parallel blocks and windows."""
    plain = gpt(96, 12288, 128, 64_000)
    own = replace(plain, block="parallel", window=512, full_attention_every=0)
    for chips, batch, ours, theirs in (
        (256, 768, 65.3, 53.0),
        (512, 768, 63.5, 49.9),
        (768, 768, 61.3, 46.7),
        (1024, 768, 59.0, 44.7),
        (6144, 6144, 57.3, 45.8),
        (8192, 6144, 55.7, 44.4),
        (12288, 6144, 55.2, None),
    ):
        layout = Layout(tp=8, pp=8, dp_shard=chips // 64, virtual=6, pipeline=Pipeline.INTERLEAVED, zero=1)
        base = Work(model=plain, sequence=2048, batch=batch)
        for name, work, mfu in (
            ("MegaScale", replace(base, model=own, implementation=Implementation(overlap_tp=True)), ours),
            ("Megatron-LM beside MegaScale", replace(base, implementation=Implementation(overlap=False)), theirs),
        ):
            if mfu is not None:
                seconds = rate_seconds(base, mfu / 100 * 312e12 * chips, Convention.FULL)
                yield _row(f"{name} on {chips}", name, A100, work, layout, seconds, "model, full attention")


def _others() -> Iterator[Row]:
    """GLM-130B (MFU), GPT-NeoX-20B and OPT-175B (hardware TFLOP/s with recomputation, taken as 4/3 of full attention)."""
    shape = {"ffn_width": 32_768, "ffn": "geglu", "position": "rope", "positions": 0}
    work = replace(_old(70, 12288, 96, 4224, vocabulary=150_528, **shape))
    layout = _megatron_layout(768, 4, 8, zero=1, dp_replicate=1, dp_shard=24)
    seconds = rate_seconds(work, 0.325 * 312e12 * 768, Convention.FULL)
    yield _row("GLM-130B", "glm", "A100-SXM-40GB", work, layout, seconds, "model, full attention")
    neox = {"position": "rope", "positions": 0, "tied_embeddings": False, "block": "parallel-two-norms"}
    work = _old(44, 6144, 64, 1538, vocabulary=50_432, **neox)
    layout = _megatron_layout(96, 2, 4, 4, zero=1, dp_replicate=1, dp_shard=12)
    seconds = rate_seconds(work, 117e12 * 96, Convention.FULL, again=4 / 3)
    yield _row("GPT-NeoX-20B", "neox", "A100-SXM-40GB", work, layout, seconds, "hardware, full attention")
    work = replace(_old(96, 12288, 96, 992, vocabulary=50_272), implementation=replace(MEGATRON_2021, overlap=True))
    layout = _megatron_layout(992, 8, 1, 8, zero=3, dp_replicate=1, dp_shard=124)
    seconds = rate_seconds(work, 147e12 * 992, Convention.FULL, again=4 / 3)
    yield _row("OPT-175B", "opt", A100, work, layout, seconds, "hardware, full attention")

"""Memory model against published peaks: error per row, and with every family left out. Prints JSON.

    python bench/plan_memory.py [--reference DIRECTORY]

Rows of torchtitan report the most that torch's allocator reserved, Megatron's the most that it had allocated; neither counts
context and communicators. No row is fitted. One constant could be: the allocator's share. ``left_out`` fits it on all other
families and judges on the one left out, so that it shows what the constant as written owes to these rows.

Settings that the tables do not name are those of the code of that date: torchtitan cuts a batch into as many micro-batches as
pipeline stages; uncompiled loss in December 2024, compiled with the model since April 2025; logits of all micro-batches kept.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.formulas.chips import find_chip
from headway.plan.memory.model import GIB, RankMemory
from headway.plan.memory.rank_memory import peak_memory
from headway.plan.work import Cluster, Implementation, Layout, Loss, Pipeline, Recompute, Work
from headway.recipe.spec import ModelSpec

ROOT = Path(__file__).resolve().parents[1]
GB = 1e9


def decoder(layers: int, width: int, heads: int, kv_heads: int, ffn_width: int, vocabulary: int, **others: Any) -> ModelSpec:
    """A Llama-like decoder, unless ``others`` says so."""
    plain = {"rope_base": 5e5, "norm_epsilon": 1e-5, "qk_norm": False, "tied_embeddings": False, "init_std": 0.02}
    return ModelSpec(
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_width=width // heads,
        ffn_width=ffn_width,
        vocabulary=vocabulary,
        **{**plain, **others},
    )


LLAMA = {
    "8B": decoder(32, 4096, 32, 8, 14336, 128_256),
    "70B": decoder(80, 8192, 64, 8, 28672, 128_256),
    "405B": decoder(126, 16384, 128, 8, 53248, 128_256),
}
LLAMA_2_7B = decoder(32, 4096, 32, 32, 11008, 32_000, norm="layernorm", bias="all")  # as the report lists its parameters
GPT_7B = decoder(32, 4096, 32, 32, 16384, 50_304, ffn="gelu", norm="layernorm", bias="all", position="learned", positions=32_768)


@dataclass(frozen=True)
class Case:
    """One measured peak, and what the model says."""

    name: str
    families: dict[str, str]
    measured: float  # bytes
    memory: RankMemory
    counts: str = "reserved"  # or allocated: what was measured

    def predicted(self, share: float | None = None) -> float:
        """Bytes; ``share``: of the allocator, in place of the constant."""
        if self.counts == "allocated":
            return self.memory.allocated
        if share is None:
            return self.memory.reserved
        return self.memory.allocated + share * (self.memory.allocated - self.memory.state)

    def error(self, share: float | None = None) -> float:
        return self.predicted(share) / self.measured - 1


def torchtitan_case(row: dict[str, str]) -> Case:
    """A row of torchtitan_bench.csv."""
    axes = {axis.lower(): int(size) for axis, size in re.findall(r"(FSDP|TP|PP|CP)(\d+)", row["parallelism"])}
    pp, size = axes.get("pp", 1), row["model"].rpartition("-")[2]
    interleaved, in_2025 = "Interleaved" in row["technique"], "H200" in row["hardware"]
    is_compiled = "compile" in row["technique"] or pp > 1
    layout = Layout(
        pp=pp,
        dp_shard=axes["fsdp"],
        cp=axes.get("cp", 1),
        tp=axes.get("tp", 1),
        virtual=2 if interleaved else 1,
        pipeline=Pipeline.INTERLEAVED if interleaved else Pipeline.ONE_F_ONE_B,
        micro_batch=int(row["local_batch"]) // pp,
        recompute=Recompute.FULL if row["act_ckpt"] == "full" else Recompute.OPS,
    )
    how = Implementation(
        fused=is_compiled,
        loss=Loss.COMPILED if in_2025 else Loss.EAGER,
        keeps_logits=True,
        overlap_tp="AsyncTP" in row["technique"],
    )
    work = Work(
        model=LLAMA[size],
        sequence=int(row["seq_len"]),
        batch=int(row["global_batch"]),
        precision="float8" if row["precision"] == "fp8" else "bfloat16",
        implementation=how,
        weight_bytes=4,
        gradient_bytes=4,
        optimizer_bytes=8,
    )
    kinds = [name for name in ("pp", "tp", "cp") if axes.get(name, 1) > 1 or name.upper() in row["technique"].split("+")]
    families = {"model": size, "precision": row["precision"], "layout": kinds[0] if kinds else "fsdp"}
    families |= {"recompute": row["act_ckpt"], "year": "2025" if in_2025 else "2024"}
    name = f"{row['model']} {row['parallelism']} s {row['seq_len']} {row['technique']}"
    return Case(name, families, float(row["mem_gib"]) * GIB, peak(work, layout))


def peak(work: Work, layout: Layout) -> RankMemory:
    chip = find_chip("h100_80gb")
    return peak_memory(work, layout, Cluster(chip=chip, chips=layout.world, domain=8, network=50e9))


def torchtitan_cases(reference: Path) -> list[Case]:
    with (reference / "torchtitan_bench.csv").open(newline="") as file:
        return [torchtitan_case(row) for row in csv.DictReader(file) if row["mem_gib"]]


def megatron_cases() -> list[Case]:
    """Megatron-LM pull request 482: Llama-2-7B on eight H800, flash attention, distributed optimizer, sequences of 2,048.

    Its table has the columns micro-batch, batch, DP, PP, TP, so that the reference row "dp4 tp2 pp1" is pp 2, tp 1.
    """
    how = Implementation(fused=False, dropout=True)
    rows = [(2, 2048, 8, 1, 1, 69.1), (4, 512, 4, 1, 2, 55.7), (2, 2048, 4, 2, 1, 49.8), (4, 128, 1, 1, 8, 28.8)]
    cases = []
    for micro_batch, batch, dp, pp, tp, measured in rows:
        layout = Layout(dp_shard=dp, pp=pp, tp=tp, micro_batch=micro_batch, zero=1, sequence_parallel=False)
        work = Work(model=LLAMA_2_7B, sequence=2048, batch=batch, implementation=how)
        name = f"Llama-2-7B micro-batch {micro_batch} dp {dp} pp {pp} tp {tp}"
        cases.append(Case(name, {"source": "Megatron-LM PR 482"}, measured * GIB, peak(work, layout), "allocated"))
    return cases


def deepspeed_cases() -> list[Case]:
    """DeepSpeed issue 5305: a GPT of 7B, windows of 32k, 16 windows a step, eight A100; the report gives no configuration.

    Ulysses splits the sequence as context parallelism does. Buffers of DeepSpeed (prefetch, persistent parameters, buckets of
    half a billion elements) are not modelled: that its ZeRO-3 takes more than its ZeRO-2 was reported as a fault.
    """
    rows = [(3, "full", 4, 1, 52.8), (2, "full", 4, 1, 43.8), (3, "none", 4, 1, 75.2), (2, "none", 4, 1, 62.3)]
    rows += [(1, "full", 1, 4, 32.5), (1, "none", 1, 4, 45.0)]
    cases = []
    for zero, recompute, cp, tp, measured in rows:
        layout = Layout(dp_shard=2, cp=cp, tp=tp, zero=zero, recompute=Recompute(recompute))
        work = Work(model=GPT_7B, sequence=32_768, batch=16, implementation=Implementation(fused=False, dropout=True))
        name = f"7B zero {zero} cp {cp} tp {tp} recompute {recompute}"
        cases.append(Case(name, {"source": "DeepSpeed issue 5305"}, measured * GB, peak(work, layout)))
    return cases


# --- errors ---------------------------------------------------------------------------------------------------------------


def summary(errors: Iterable[float]) -> dict[str, float]:
    errors = list(errors)
    sizes = [abs(error) for error in errors]
    return {
        "rows": len(errors),
        "mean_error_share": round(statistics.fmean(sizes), 4),
        "median_error_share": round(statistics.median(sizes), 4),
        "worst_error_share": round(max(sizes), 4),
        "bias_share": round(statistics.fmean(errors), 4),
    }


def table(cases: list[Case]) -> list[dict[str, Any]]:
    rows = []
    for case in cases:
        low, high = (bound - case.memory.context for bound in case.memory.band())
        row = {"name": case.name, "counts": case.counts, "pipeline_stage": case.memory.stage}
        row |= {"measured_gib": round(case.measured / GIB, 2), "predicted_gib": round(case.predicted() / GIB, 2)}
        rows.append(row | {"error": round(case.error(), 4), "in_band": low <= case.measured <= high})
    return rows


def left_out(cases: list[Case], family: str) -> dict[str, Any]:
    """The allocator's share fitted on all other groups of ``family``; errors on the group itself."""
    found = {}
    for group in sorted({case.families[family] for case in cases}):
        rest = [case for case in cases if case.families[family] != group]
        mine = [case for case in cases if case.families[family] == group]
        share = fitted_share(rest)
        judged = summary(case.error(share) for case in mine)
        found[group] = {
            "rows": judged["rows"],
            "fitted_allocator": round(share, 3),
            "mean_error_share": judged["mean_error_share"],
            "worst_error": judged["worst_error_share"],
            "bias": judged["bias_share"],
            "mean_error_as_written": summary(case.error() for case in mine)["mean_error_share"],
        }
    return found


def fitted_share(cases: list[Case]) -> float:
    """Least mean absolute error."""
    best: Callable[[float], float] = lambda share: statistics.fmean(abs(case.error(share)) for case in cases)  # noqa: E731
    return min((at / 1000 for at in range(201)), key=best)


def measure(reference: Path) -> dict[str, Any]:
    cases, others = torchtitan_cases(reference), {"megatron": megatron_cases(), "deepspeed": deepspeed_cases()}
    families = ("model", "precision", "layout", "recompute", "year")
    return {
        "bench": "plan_memory",
        "torchtitan": summary(case.error() for case in cases),
        "torchtitan_left_out": {family: left_out(cases, family) for family in families},
        "torchtitan_table": table(cases),
        **{name: summary(case.error() for case in group) for name, group in others.items()},
        **{f"{name}_table": table(group) for name, group in others.items()},
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(os.environ.get("HEADWAY_REFERENCE", ROOT.parent / "shared" / "reference"))
    parser.add_argument("--reference", type=Path, default=default, help="folder that holds plan/")
    asked = parser.parse_args(arguments)
    print(json.dumps(measure(asked.reference / "plan"), indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])

"""Training of the model family against its peers: speed, share of the GEMM rate, peak memory. Prints JSON.

    python bench/model_family.py [--rounds 7] [--shapes dense-17m-256,...] [--sides trainer,litgpt,plain] [--lean] [--compile]

All sides train the same shape (their parameters are counted and must be equal), step by step in turn within one process:

    gemm, ours, litgpt, plain, Trainer, gemm, ours, litgpt, plain, Trainer, ...      medians of ratios; the GEMM's best

``trainer``: transformers' Trainer over rows in memory; the other sides run between its steps, and that time is left out.
``litgpt``: its model and chunked_cross_entropy in the plain part of its pretraining loop. ``plain``: ``plain_gpt.py``.
Everyone has bfloat16 autocast or its like over float32 weights, clipping, fused AdamW. Peak memory is that of three steps in
a process of its own, above what it held after its imports.

Beside it, the loss alone against cross-entropy over all logits in float32, and the fused update against torch's default.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.formulas.parameters import count_parameters
from headway.model.decoder import Decoder
from headway.model.init import initialise
from headway.model.loss import loss_sums
from headway.model.precision import ComputeModel
from headway.optim.build import build_optimizer
from headway.recipe.spec import ExpertsSpec, PrecisionSpec
from plain_gpt import PlainGpt, plain_update
from training import (
    ADAMW,
    MEAN_DOCUMENT_TOKENS,
    Z_WEIGHT,
    Shape,
    batch,
    gemm_flops_per_second,
    model,
    random_tokens,
    spread,
    timed,
    update_of,
)

STEP_TOKENS = 4096
WARM_ROUNDS = 2
PEAK_STEPS = 3
Step = Callable[[], float]

DENSE = model(6, 384, 6, 64, 1536, 10_240)
MOE = replace(model(6, 384, 6, 64, 1024, 10_240), qk_norm=False, experts=ExpertsSpec(experts=8, top_k=2, width=512))
"""Mixtral's block: softmax over the chosen two of eight, no shared expert, no QK-norm."""


def shapes() -> dict[str, Shape]:
    """NAME-T: rows of T tokens, the same number of tokens in every step."""
    models = {"dense-17m": DENSE, "moe-8x2": MOE}
    return {f"{name}-{t}": Shape(spec, STEP_TOKENS // t, t) for name, spec in models.items() for t in (256, 2048)}


SHAPES = shapes()
DIFFERENCES = {
    "all": "same parameters, tied embeddings, fp32 weights and moments, bfloat16 compute, clipping at 1, fused AdamW",
    "ours": f"document masks (mean {MEAN_DOCUMENT_TOKENS} tokens), z-loss, chunked loss, one cast of the weights per step",
    "trainer": "transformers' Trainer: Qwen3 (dense) or Mixtral (experts), sdpa, no document masks, all logits in float32; "
    "its loader is counted, its logging and saving are off",
    "litgpt": "autocast of its bf16-mixed, chunked_cross_entropy over all logits, no document masks; fused AdamW, which its "
    "own script leaves off on a CPU",
    "plain": "nanoGPT's style: fused q, k, v, sdpa, all logits, no document masks",
    "compiled": "the same through torch.compile",
    "lean": "with --lean the peers have no QK-norm (Llama), ours has it",
}


# --- the sides: each returns one update as a function


@dataclass(frozen=True, kw_only=True)
class Side:
    """``build``: one update of a shape as a function; ``needs``: modules that count as imports, not as training."""

    build: Callable[[Shape], Step]
    needs: tuple[str, ...] = ()


def our_side(shape: Shape) -> Step:
    decoder = Decoder(shape.model)
    check_count(shape, decoder)
    initialise(decoder, shape.model, seed=1)
    return our_step(shape, decoder)


def our_step(shape: Shape, decoder: Decoder, mean_document_tokens: float = MEAN_DOCUMENT_TOKENS) -> Step:
    """One update with the engine's own parts on the decoder's device, as ``train/step.py`` puts them together."""
    return update_of(ComputeModel(decoder, PrecisionSpec("bfloat16")), shape, mean_document_tokens)


def check_count(shape: Shape, model: nn.Module) -> None:
    """Everyone trains the same number of parameters."""
    found, expected = sum(p.numel() for p in model.parameters()), count_parameters(shape.model).total
    if found != expected:
        raise RuntimeError(f"{type(model).__name__} has {found} parameters, the shape {expected}")


def litgpt_step(shape: Shape) -> Step:
    return litgpt_update(shape, compiled=False)


def litgpt_update(shape: Shape, *, compiled: bool) -> Step:
    """What litgpt's pretraining loop does between two batches, without Lightning around it."""
    from litgpt.config import Config
    from litgpt.model import GPT
    from litgpt.utils import chunked_cross_entropy

    gpt = GPT(Config(**litgpt_fields(shape))).train()
    gpt.apply(gpt._init_weights)
    if shape.model.tied_embeddings:
        gpt.transformer.wte.weight = gpt.lm_head.weight
    check_count(shape, gpt)
    forward, (tokens_BT, targets_BT) = torch.compile(gpt) if compiled else gpt, batch(shape)
    return plain_update(gpt, lambda: chunked_cross_entropy(forward(tokens_BT), targets_BT), ADAMW.peak_rate)


def litgpt_fields(shape: Shape) -> dict[str, Any]:
    spec, experts = shape.model, shape.model.experts
    dense = {"mlp_class_name": "LLaMAMLP", "intermediate_size": spec.ffn_width}
    moe = {} if experts is None else {
        "mlp_class_name": "LLaMAMoE", "moe_intermediate_size": experts.width, "n_expert": experts.experts,
        "n_expert_per_token": experts.top_k,
    }  # fmt: skip
    return {
        "name": "bench", "block_size": shape.sequence_length, "n_layer": spec.layers, "n_embd": spec.width,
        "n_head": spec.heads, "n_query_groups": spec.kv_heads, "head_size": spec.head_width, "rotary_percentage": 1.0,
        "vocab_size": spec.vocabulary, "padded_vocab_size": spec.vocabulary, "norm_class_name": "RMSNorm",
        "norm_eps": spec.norm_epsilon, "norm_qk": spec.qk_norm, "parallel_residual": False, "bias": False, **dense, **moe,
    }  # fmt: skip


def plain_step(shape: Shape) -> Step:
    return plain_side(shape, compiled=False)


def plain_side(shape: Shape, *, compiled: bool) -> Step:
    gpt, (tokens_BT, targets_BT) = PlainGpt(shape.model, shape.sequence_length), batch(shape)
    check_count(shape, gpt)
    forward = torch.compile(gpt) if compiled else gpt
    return plain_update(gpt, lambda: forward(tokens_BT, targets_BT), ADAMW.peak_rate)


SIDES = {
    "ours": Side(build=our_side),
    "litgpt": Side(build=litgpt_step, needs=("litgpt.model", "litgpt.utils")),
    "plain": Side(build=plain_step),
}
COMPILED = {
    "litgpt_compiled": Side(build=lambda shape: litgpt_update(shape, compiled=True), needs=("litgpt.model", "litgpt.utils")),
    "plain_compiled": Side(build=lambda shape: plain_side(shape, compiled=True)),
}
TRAINER_NEEDS = (
    "transformers.trainer", "accelerate", "transformers.models.qwen3.modeling_qwen3",
    "transformers.models.llama.modeling_llama", "transformers.models.mixtral.modeling_mixtral",
)  # fmt: skip


# --- the Trainer, which owns its loop: the others run between its steps


def transformers_model(shape: Shape) -> nn.Module:
    """Qwen3 (QK-norm), Llama (without), Mixtral (experts) of the shape."""
    from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM, Qwen3Config, Qwen3ForCausalLM

    spec, experts = shape.model, shape.model.experts
    fields = {
        "vocab_size": spec.vocabulary, "hidden_size": spec.width, "intermediate_size": spec.ffn_width,
        "num_hidden_layers": spec.layers, "num_attention_heads": spec.heads, "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_width, "max_position_embeddings": shape.sequence_length, "rms_norm_eps": spec.norm_epsilon,
        "tie_word_embeddings": spec.tied_embeddings, "use_cache": False, "attn_implementation": "sdpa",
    }  # fmt: skip
    if experts is not None:
        fields |= {"intermediate_size": experts.width, "num_local_experts": experts.experts}
        return MixtralForCausalLM(MixtralConfig(**fields, num_experts_per_tok=experts.top_k, sliding_window=None))
    return Qwen3ForCausalLM(Qwen3Config(**fields)) if spec.qk_norm else LlamaForCausalLM(LlamaConfig(**fields))


def trainer_seconds(shape: Shape, steps: int, between: Callable[[], None]) -> list[float]:
    """Seconds of ``steps`` steps of a Trainer, fetching included; ``between`` runs before each, on nobody's clock."""
    from transformers import Trainer, TrainerCallback

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.seconds: list[float] = []
            self.left = self.begun = self.gap = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.gap = time.perf_counter() - self.left if self.seconds else 0.0
            between()
            self.begun = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.left = time.perf_counter()
            self.seconds.append(self.gap + self.left - self.begun)

    clock, network, ids = Clock(), transformers_model(shape).train(), random_tokens(shape)[:, :-1]
    check_count(shape, network)
    rows = [{"input_ids": row, "labels": row} for row in ids] * steps
    with redirect_stdout(sys.stderr):
        Trainer(network, trainer_arguments(shape, steps), train_dataset=rows, callbacks=[clock]).train()
    return clock.seconds


def trainer_arguments(shape: Shape, steps: int) -> Any:
    """Nothing that is not training: no log, no checkpoint, no reports."""
    from transformers import TrainingArguments
    from transformers.utils import logging

    logging.set_verbosity_error()
    return TrainingArguments(
        output_dir="/nonexistent", max_steps=steps, per_device_train_batch_size=shape.rows, use_cpu=True, bf16=True,
        optim="adamw_torch_fused", learning_rate=ADAMW.peak_rate, adam_beta2=0.95, weight_decay=0.1, max_grad_norm=1.0,
        lr_scheduler_type="constant", logging_strategy="no", save_strategy="no", eval_strategy="no", report_to=[],
        disable_tqdm=True, logging_nan_inf_filter=False, dataloader_pin_memory=False, dataloader_num_workers=0,
    )  # fmt: skip


# --- one shape, all sides


def measure_shape(name: str, shape: Shape, rounds: int, options: Options) -> dict[str, Any]:
    """Alternating steps of all sides and the GEMM; peaks from processes of their own."""
    sides, absent = build_sides(shape, options)
    if "ours" in absent:
        return {"shape": name, "absent": absent}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    rates: list[float] = []

    def between() -> None:
        rates.append(gemm_flops_per_second())
        for side, step in sides.items():
            seconds[side].append(timed(step))

    if "trainer" in options.sides:
        seconds["trainer"] = trainer_seconds(options.peer_shape(shape), rounds + WARM_ROUNDS, between)
    else:
        for _ in range(rounds + WARM_ROUNDS):
            between()
    seconds = {side: values[WARM_ROUNDS:] for side, values in seconds.items()}
    count = count_parameters(shape.model)
    return {
        "shape": name,
        "parameters": count.total,
        "active_parameters": count.active,
        "rows": shape.rows,
        "sequence_length": shape.sequence_length,
        "gemm_gflops_per_second": round(max(rates) / 1e9),
        **speed_figures(shape, seconds, max(rates)),
        **(peak_figures(name, list(seconds), options) if options.memory else {}),
        **({"absent": absent} if absent else {}),
    }


def build_sides(shape: Shape, options: Options) -> tuple[dict[str, Step], dict[str, str]]:
    """Steps of the sides that run here, and why the others do not."""
    steps: dict[str, Step] = {}
    absent: dict[str, str] = {}
    for name, side in {**SIDES, **COMPILED}.items():
        if name == "ours" or name in options.sides:
            try:
                steps[name] = side.build(shape if name == "ours" else options.peer_shape(shape))
            except Exception as error:
                absent[name] = f"{type(error).__name__}: {error}"
    return steps, absent


def speed_figures(shape: Shape, seconds: dict[str, list[float]], gemm: float) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for side, values in seconds.items():
        prefix, median = "" if side == "ours" else f"{side}_", statistics.median(values)
        figures[f"{prefix}tokens_per_second"] = round(shape.tokens / median)
        if side != "ours":
            pairs = [theirs / ours for ours, theirs in zip(seconds["ours"], values, strict=True)]
            figures[f"speed_over_{side}"] = round(statistics.median(pairs), 3)
        figures[f"{prefix}share_of_gemm"] = round(shape.step_flops / median / gemm, 3)
        figures[f"{prefix}step_seconds_min_median_max"] = spread(values)
    return figures


# --- peak memory, in processes of their own


def peak_figures(shape: str, sides: list[str], options: Options) -> dict[str, Any]:
    flags = ["--lean"] if options.lean else []
    peaks = {side: in_own_process(f"step:{side}:{shape}", flags) for side in sides}
    figures: dict[str, Any] = {f"{side}_peak_mib": round(peak / 2**20, 1) for side, peak in peaks.items()}
    return figures | {f"{side}_peak_over_ours": round(peak / peaks["ours"], 2) for side, peak in peaks.items() if side != "ours"}


def in_own_process(task: str, flags: list[str]) -> int:
    """Bytes that ``task`` needed above its baseline."""
    command = [sys.executable, str(Path(__file__).resolve()), "--peak", task, "--threads", str(torch.get_num_threads()), *flags]
    return int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()[-1])


@contextmanager
def memory_meter() -> Iterator[Callable[[], int]]:
    """Yields a function: peak bytes of resident memory above what was held on entry.

    Not ru_maxrss, which begins at the size of the process that started this one.
    """
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = status_bytes("VmRSS")
    yield lambda: status_bytes("VmHWM") - before


def status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def peak_of(task: str, options: Options) -> int:
    """``step:SIDE:SHAPE`` or ``loss:KIND``, in this process."""
    kind, name, *rest = task.split(":")
    if kind == "loss":
        run = LOSSES[name]
        run(*loss_inputs(tokens=64))  # libraries set themselves up
        inputs = loss_inputs()
        with memory_meter() as peak:
            run(*inputs)
            return peak()
    shape = SHAPES[rest[0]] if name == "ours" else options.peer_shape(SHAPES[rest[0]])
    side = None if name == "trainer" else {**SIDES, **COMPILED}[name]
    for module in TRAINER_NEEDS if side is None else side.needs:
        import_module(module)
    with memory_meter() as peak:
        if side is None:
            trainer_seconds(shape, PEAK_STEPS, lambda: None)
        else:
            step = side.build(shape)
            for _ in range(PEAK_STEPS):
                step()
        return peak()


# --- the loss and the update alone

LOSS_TOKENS, LOSS_WIDTH, LOSS_VOCABULARY = 4096, 384, 32_768


def loss_inputs(tokens: int = LOSS_TOKENS) -> tuple[Tensor, Tensor, Tensor]:
    """hidden_ND and weight_VD in bfloat16, targets_N."""
    generator = torch.Generator().manual_seed(0)
    hidden_ND = torch.randn(tokens, LOSS_WIDTH, generator=generator).bfloat16().requires_grad_()
    weight_VD = (0.02 * torch.randn(LOSS_VOCABULARY, LOSS_WIDTH, generator=generator)).bfloat16().requires_grad_()
    return hidden_ND, weight_VD, torch.randint(0, LOSS_VOCABULARY, (tokens,), generator=generator)


def chunked_loss(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> None:
    sums = loss_sums(hidden_ND[None], weight_VD, targets_N[None], None, Z_WEIGHT)
    torch.autograd.grad(sums.objective_sum / len(targets_N), (hidden_ND, weight_VD))


def whole_loss(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> None:
    loss = F.cross_entropy(F.linear(hidden_ND, weight_VD).float(), targets_N)
    torch.autograd.grad(loss, (hidden_ND, weight_VD))


LOSSES = {"ours": chunked_loss, "cross_entropy": whole_loss}


def measure_loss(rounds: int) -> dict[str, Any]:
    """Forward and backward of head and loss."""
    inputs, seconds = loss_inputs(), {kind: [] for kind in LOSSES}
    for turn in range(rounds + 1):
        for kind, run in LOSSES.items():
            elapsed = timed(lambda run=run: run(*inputs))
            seconds[kind] += [elapsed] if turn else []
    pairs = [ours / theirs for ours, theirs in zip(seconds["ours"], seconds["cross_entropy"], strict=True)]
    peaks = {kind: in_own_process(f"loss:{kind}", []) for kind in LOSSES}
    return {
        "tokens": LOSS_TOKENS,
        "width": LOSS_WIDTH,
        "vocabulary": LOSS_VOCABULARY,
        "ours_includes": "z-loss",
        "milliseconds": {kind: round(1e3 * statistics.median(values), 1) for kind, values in seconds.items()},
        "peak_mib": {kind: round(peak / 2**20, 1) for kind, peak in peaks.items()},
        "time_over_cross_entropy": round(statistics.median(pairs), 3),
        "memory_over_cross_entropy": round(peaks["ours"] / peaks["cross_entropy"], 3),
    }


def measure_update(rounds: int) -> dict[str, Any]:
    """One AdamW update of the dense shape: ours (fused), torch's default, foreach."""
    kinds: dict[str, Callable[[], Any]] = {"ours": build_optimizer(seeded_decoder(), ADAMW).step}
    for name, options in (("default", {}), ("foreach", {"foreach": True})):
        kinds[name] = torch.optim.AdamW(seeded_decoder().parameters(), 1e-3, weight_decay=0.1, **options).step
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(3 * rounds + 1):
        for kind, step in kinds.items():
            elapsed = timed(step)
            seconds[kind] += [elapsed] if turn else []
    median = {kind: statistics.median(values) for kind, values in seconds.items()}
    return {
        "milliseconds": {kind: round(1e3 * value, 2) for kind, value in median.items()},
        "speed_over_default": round(median["default"] / median["ours"], 2),
        "speed_over_foreach": round(median["foreach"] / median["ours"], 2),
    }


def seeded_decoder() -> Decoder:
    """The dense shape with a gradient everywhere."""
    decoder = Decoder(DENSE)
    initialise(decoder, DENSE, seed=1)
    for parameter in decoder.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    return decoder


# --- the command


@dataclass(frozen=True, kw_only=True)
class Options:
    """``lean``: peers without QK-norm; ``memory``: peaks are measured too."""

    sides: tuple[str, ...]
    lean: bool
    memory: bool

    def peer_shape(self, shape: Shape) -> Shape:
        return replace(shape, model=replace(shape.model, qk_norm=False)) if self.lean else shape


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--shapes", default=",".join(SHAPES), help="comma-separated, of: " + ", ".join(SHAPES))
    parser.add_argument("--sides", default="trainer,litgpt,plain", help="peers, comma-separated")
    parser.add_argument("--threads", type=int, default=0, help="0: torch's default")
    parser.add_argument("--lean", action="store_true", help="peers without QK-norm")
    parser.add_argument("--compile", action="store_true", help="litgpt and plain through torch.compile as well")
    parser.add_argument("--no-memory", action="store_true", help="speed only")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    if asked.threads:
        torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    sides = tuple(side for side in asked.sides.split(",") if side) + (tuple(COMPILED) if asked.compile else ())
    options = Options(sides=sides, lean=asked.lean, memory=not asked.no_memory)
    if asked.peak:
        print(peak_of(asked.peak, options))
        return
    print(json.dumps(all_figures(asked, options), indent=1))


def all_figures(asked: argparse.Namespace, options: Options) -> dict[str, Any]:
    return {
        "bench": "model_family",
        "threads": torch.get_num_threads(),
        "compute": "bfloat16",
        "flops_convention": "causal",
        "differences": DIFFERENCES,
        "lean_peers": options.lean,
        "training": [measure_shape(name, SHAPES[name], asked.rounds, options) for name in asked.shapes.split(",") if name],
        "loss": measure_loss(asked.rounds),
        "update": measure_update(asked.rounds),
    }


if __name__ == "__main__":
    main(sys.argv[1:])

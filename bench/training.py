"""Training figures: tokens per second of whole steps, against transformers and against this machine's GEMM. Prints JSON.

    python bench/training.py [--rounds 9] [--shapes demo,16m-256,16m-1024] [--threads 2]

One step is forward, loss, backward, clip and fused AdamW. Ours does more in it: document masks, QK-norm, z-loss. The other
side is ``LlamaForCausalLM`` of the same widths in a plain loop (bfloat16 autocast, labels, clip_grad_norm_, fused AdamW),
one document per row. Both alternate step by step in one process, and so does the GEMM whose best rate is the yardstick:

    gemm, ours, transformers, gemm, ours, transformers, ...      medians of each; the GEMM's best

FLOPs are of the causal convention (``headway.formulas.flops``), for both sides those of our shape: 6 P + 6 L H E s per token.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from headway.formulas.flops import Convention, flops_per_token
from headway.formulas.parameters import count_parameters
from headway.model.attention import attend
from headway.model.context import Context, document_mask, make_context
from headway.model.decoder import Decoder
from headway.model.init import initialise
from headway.model.objective import training_sums
from headway.model.precision import ComputeModel
from headway.model.tally import Loads
from headway.optim.build import build_optimizer
from headway.optim.clip import clip_by_norm
from headway.optim.guard import Guard
from headway.recipe.spec import ModelSpec, OptimizerSpec, PrecisionSpec

MEAN_DOCUMENT_TOKENS = 2_000
ADAMW = OptimizerSpec("adamw", 1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0)
Z_WEIGHT = 1e-4
GEMMS = ((4096, 1024, 1024), (4096, 384, 1536), (8192, 256, 512))
"""Tokens, in, out: the best of these is the machine's rate. Larger ones were slower here."""


@dataclass(frozen=True)
class Shape:
    """What is trained: rows of ``sequence_length`` tokens through ``model``."""

    model: ModelSpec
    rows: int
    sequence_length: int

    @property
    def tokens(self) -> int:
        return self.rows * self.sequence_length

    @property
    def step_flops(self) -> float:
        return self.tokens * flops_per_token(self.model, self.sequence_length, Convention.CAUSAL)


def model(layers: int, width: int, heads: int, head_width: int, ffn_width: int, vocabulary: int) -> ModelSpec:
    return ModelSpec(
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=2,
        head_width=head_width,
        ffn_width=ffn_width,
        vocabulary=vocabulary,
        rope_base=10_000.0,
        norm_epsilon=1e-5,
        qk_norm=True,
        tied_embeddings=True,
        init_std=0.02,
    )


SHAPES = {
    "demo": Shape(model(4, 192, 6, 32, 512, 4096), rows=16, sequence_length=256),
    "16m-256": Shape(model(6, 384, 6, 64, 1536, 8192), rows=8, sequence_length=256),
    "16m-1024": Shape(model(6, 384, 6, 64, 1536, 8192), rows=2, sequence_length=1024),
}


def documents(rows: int, length: int, mean_tokens: float) -> tuple[torch.Tensor, torch.Tensor]:
    """position_BT, document_BT of documents with exponential lengths, as the stream would cut them."""
    generator = torch.Generator().manual_seed(0)
    starts_BT = torch.rand(rows, length, generator=generator) < 1 / mean_tokens
    starts_BT[:, 0] = True
    column_T = torch.arange(length)
    start_BT = torch.where(starts_BT, column_T, 0).cummax(1).values
    return column_T - start_BT, starts_BT.long().cumsum(1)


def random_tokens(shape: Shape) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, shape.model.vocabulary, (shape.rows, shape.sequence_length + 1), generator=generator)


def batch(shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """tokens_BT, targets_BT."""
    ids = random_tokens(shape)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def our_step(shape: Shape) -> Callable[[], float]:
    decoder = Decoder(shape.model)
    initialise(decoder, shape.model, seed=1)
    return update_of(ComputeModel(decoder, PrecisionSpec("bfloat16")), shape, MEAN_DOCUMENT_TOKENS)


def update_of(compute: ComputeModel, shape: Shape, mean_document_tokens: float) -> Callable[[], float]:
    """One update with the engine's own parts on the decoder's device, as ``train/step.py`` puts them together."""
    parameters = list(compute.decoder.parameters())
    device = parameters[0].device
    optimizer, guard = build_optimizer(compute.decoder, ADAMW), Guard(None, device)
    tokens_BT, targets_BT = (x.to(device) for x in batch(shape))
    places = [x.to(device) for x in documents(shape.rows, shape.sequence_length, mean_document_tokens)]

    def step() -> float:
        sums = training_sums(compute, tokens_BT, targets_BT, context_of(shape, *places), Z_WEIGHT)
        (sums.objective_sum / shape.tokens).backward()
        clip = clip_by_norm(parameters, ADAMW.clip_norm)
        bad = guard.judge(clip.norm)
        optimizer.set_rate(ADAMW.peak_rate)
        optimizer.step(bad)
        if clip.read(bad).applied:
            compute.refresh()
        optimizer.zero_grad()
        if sums.tally is not None:
            loads = Loads()
            loads.add(sums.tally)
            loads.statistics()
        return float(sums.nll_sum) / shape.tokens

    return step


def context_of(shape: Shape, position_BT: torch.Tensor, document_BT: torch.Tensor) -> Context:
    return make_context(position_BT, document_BT, shape.model, shape.model.rope, torch.bfloat16)


def transformers_step(shape: Shape) -> Callable[[], float]:
    """A plain loop over the same shape with transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    spec = shape.model
    config = LlamaConfig(
        vocab_size=spec.vocabulary,
        hidden_size=spec.width,
        intermediate_size=spec.ffn_width,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        head_dim=spec.head_width,
        max_position_embeddings=shape.sequence_length,
        rms_norm_eps=spec.norm_epsilon,
        tie_word_embeddings=spec.tied_embeddings,
        use_cache=False,
        attn_implementation="sdpa",
    )
    llama, ids_BT = LlamaForCausalLM(config).train(), random_tokens(shape)[:, :-1].contiguous()
    optimizer = torch.optim.AdamW(llama.parameters(), ADAMW.peak_rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16):
            loss = llama(input_ids=ids_BT, labels=ids_BT).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(llama.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def gemm_flops_per_second(repeats: int = 3) -> float:
    """Best rate of bfloat16 products, results written in place."""
    best = 0.0
    for tokens, width_in, width_out in GEMMS:
        x, w = torch.randn(tokens, width_in).bfloat16(), torch.randn(width_out, width_in).bfloat16()
        out = torch.empty(tokens, width_out, dtype=torch.bfloat16)
        for _ in range(repeats):
            seconds = timed(lambda x=x, w=w, out=out: torch.mm(x, w.t(), out=out))
            best = max(best, 2 * tokens * width_in * width_out / seconds)
    return best


def timed(call: Callable[[], object]) -> float:
    before = time.perf_counter()
    call()
    return time.perf_counter() - before


def measure_shape(name: str, shape: Shape, rounds: int) -> dict:
    """Alternating steps of both sides and the GEMM."""
    ours, theirs = our_step(shape), transformers_step(shape)
    for step in (ours, theirs, ours, theirs):
        step()
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    gemm = 0.0
    for _ in range(rounds):
        gemm = max(gemm, gemm_flops_per_second())
        seconds["ours"].append(timed(ours))
        seconds["theirs"].append(timed(theirs))
    median = {side: statistics.median(values) for side, values in seconds.items()}
    pairs = [theirs / ours for ours, theirs in zip(seconds["ours"], seconds["theirs"], strict=True)]
    count = count_parameters(shape.model)
    return {
        "shape": name,
        "parameters": count.total,
        "rows": shape.rows,
        "sequence_length": shape.sequence_length,
        "tokens_per_second": round(shape.tokens / median["ours"]),
        "transformers_tokens_per_second": round(shape.tokens / median["theirs"]),
        "speed_over_transformers": round(statistics.median(pairs), 3),
        "share_of_gemm": round(shape.step_flops / median["ours"] / gemm, 3),
        "transformers_share_of_gemm": round(shape.step_flops / median["theirs"] / gemm, 3),
        "gemm_gflops_per_second": round(gemm / 1e9),
        "step_seconds_min_median_max": spread(seconds["ours"]),
        "transformers_step_seconds_min_median_max": spread(seconds["theirs"]),
    }


def spread(values: list[float]) -> list[float]:
    return [round(x, 4) for x in (min(values), statistics.median(values), max(values))]


def measure_attention(length: int, mean_tokens: float, rounds: int) -> dict:
    """Forward and backward of one layer's attention on 4,096 tokens: ours against SDPA with a mask and plainly causal."""
    rows, heads, kv_heads, width = 4096 // length, 6, 2, 64
    q, k, v = (torch.randn(rows, length, h, width).bfloat16().requires_grad_() for h in (heads, kv_heads, kv_heads))
    grad, scaled = torch.randn_like(q), 1 / math.sqrt(width)
    position_BT, document_BT = documents(rows, length, mean_tokens)
    spec = ModelSpec(1, width, heads, kv_heads, width, 1, 1, 1e4, 1e-5, True, True, 0.02)
    visible = make_context(position_BT, document_BT, spec, spec.rope, torch.bfloat16).full
    bias = document_mask(visible.start_Bs, torch.bfloat16)

    def sdpa(mask: torch.Tensor | None) -> torch.Tensor:
        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(*heads_first, attn_mask=mask, is_causal=mask is None, enable_gqa=True).transpose(
            1, 2
        )

    kinds: dict[str, Callable[[], torch.Tensor]] = {
        "ours": lambda: attend(q * scaled, k, v, visible),
        "sdpa_boolean_mask": lambda: sdpa((bias == 0).unsqueeze(1)),
        "sdpa_additive_mask": lambda: sdpa(bias.unsqueeze(1)),
        "sdpa_causal_without_documents": lambda: sdpa(None),
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(rounds + 1):
        for kind, forward in kinds.items():
            elapsed = timed(lambda forward=forward: torch.autograd.grad(forward(), (q, k, v), grad))
            if turn:
                seconds[kind].append(elapsed)
    median = {kind: statistics.median(values) for kind, values in seconds.items()}
    return {
        "name": f"T {length}, documents of {mean_tokens:g}",
        "milliseconds": {kind: round(1e3 * value, 2) for kind, value in median.items()},
        "speed_over_sdpa_mask": round(min(median["sdpa_boolean_mask"], median["sdpa_additive_mask"]) / median["ours"], 2),
        "speed_over_sdpa_causal": round(median["sdpa_causal_without_documents"] / median["ours"], 2),
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--shapes", default=",".join(SHAPES), help="comma-separated, of: " + ", ".join(SHAPES))
    parser.add_argument("--threads", type=int, default=0, help="0: torch's default")
    asked = parser.parse_args(arguments)
    if asked.threads:
        torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    figures = {
        "bench": "training",
        "threads": torch.get_num_threads(),
        "compute": "bfloat16",
        "ours_includes": f"document masks (mean {MEAN_DOCUMENT_TOKENS} tokens), QK-norm, z-loss; transformers has none of them",
        "flops_convention": "causal",
        "training": [measure_shape(name, SHAPES[name], asked.rounds) for name in asked.shapes.split(",") if name],
        "attention": [measure_attention(t, mean, asked.rounds) for t in (256, 1024) for mean in (2_000, 200, 20)],
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])

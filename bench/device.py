"""Training figures on an accelerator, in under five minutes: a dense decoder of 1B parameters, bfloat16 and float8. Prints JSON.

    python bench/device.py                    on the CUDA device that torch sees first
    python bench/device.py --dry-run          the same path on a CPU: a tiny shape, few steps, figures without meaning

    variant                            attention                     compiled
    headway bfloat16 eager             sdpa, causal                  no
    headway bfloat16                   sdpa, causal                  per block
    headway bfloat16 documents         sdpa, document masks          per block
    headway bfloat16 documents flex    flex, document masks          per block
    headway float8                     sdpa, causal                  per block     the engine's: torchao, scales per row
    plain bfloat16, plain float8       sdpa, causal                  per block     plain_gpt.py, all logits at once

Steps are timed with CUDA events. Each variant has at most ``--variant-seconds`` (compilation included) and the whole
``--budget-seconds``; what fails or finds no time left is recorded in words and ends nothing (in the dry run: flex attention,
which has no backward on a CPU). The engine's step runs as it is but for a rotation that compilers can follow.
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.base.errors import ConfigError
from headway.formulas.flops import Convention, flops_per_token
from headway.formulas.parameters import count_parameters
from headway.model import grouped_attention as attention_module
from headway.model import kernels as kernels_module
from headway.model.attention import attend_sdpa
from headway.model.context import Visible
from headway.model.decoder import Decoder
from headway.model.loss import loss_sums
from headway.model.precision import ComputeModel
from headway.optim.build import build_optimizer
from headway.recipe.chips import Chip, find_chip
from headway.recipe.spec import PrecisionSpec
from plain_gpt import PlainGpt, plain_update
from training import ADAMW, Z_WEIGHT, Shape, batch, documents, model, update_of

DOCUMENTS_OF_A_ROW = 4
ENDLESS = 1e12
WARM_STEPS = 3
Step = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What differs between a device and the dry run."""

    device: str
    shapes: tuple[Shape, ...]
    compiler: str  # torch.compile's backend
    steps: int  # at most so many are timed
    loss: tuple[int, int, int]  # tokens, width, vocabulary
    variant_seconds: float
    budget_seconds: float


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One side, its precision and its attention."""

    side: str  # headway, plain
    precision: str = "bfloat16"  # bfloat16, float8
    attention: str = "causal"  # causal: one document per row; masks, flex: several
    compiled: bool = True

    @property
    def name(self) -> str:
        packed = {"causal": "", "masks": "documents", "flex": "documents flex"}[self.attention]
        words = [self.side, self.precision, packed, "" if self.compiled else "eager"]
        return " ".join(word for word in words if word)


VARIANTS = (
    Variant(side="headway"),
    Variant(side="headway", precision="float8"),
    Variant(side="plain"),
    Variant(side="headway", compiled=False),
    Variant(side="headway", attention="masks"),
    Variant(side="headway", attention="flex"),
    Variant(side="plain", precision="float8"),
)
"""In the order of their importance: the last ones may find no time left."""


def device_setting(asked: argparse.Namespace) -> Setting:
    one_billion = model(16, 2048, 32, 64, 8192, 32_768)
    spec = replace(one_billion, kv_heads=8, qk_norm=False)
    shapes = tuple(Shape(spec, 16_384 // t, t) for t in (2048, 4096))
    return Setting(
        device="cuda", shapes=shapes, compiler="inductor", steps=20, loss=(8192, 2048, 131_072),
        variant_seconds=asked.variant_seconds, budget_seconds=asked.budget_seconds,
    )  # fmt: skip


def dry_setting(asked: argparse.Namespace) -> Setting:
    spec = replace(model(2, 64, 4, 16, 128, 512), kv_heads=2, qk_norm=False)
    return Setting(
        device="cpu", shapes=(Shape(spec, 2, 64),), compiler="aot_eager", steps=2, loss=(128, 64, 512),
        variant_seconds=asked.variant_seconds, budget_seconds=asked.budget_seconds,
    )  # fmt: skip


# --- what compilers and float8 need in place of the engine's own


def rotate_whole(x_NHE: Tensor, cos_N1E: Tensor, sin_N1E: Tensor) -> Tensor:
    """``kernels.rotate`` without writing into halves of its result, which compilers do not follow."""
    first, second = x_NHE.chunk(2, -1)
    return torch.cat((first * cos_N1E - second * sin_N1E, second * cos_N1E + first * sin_N1E), -1)


def mean_tokens(shape: Shape, attention: str) -> float:
    """Of a document."""
    return ENDLESS if attention == "causal" else shape.sequence_length / DOCUMENTS_OF_A_ROW


def flex_attend(shape: Shape, device: str) -> Callable[..., Tensor]:
    """In place of ``attention.attend``, with the document masks of ``shape`` made once."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    _, document_BT = (x.to(device) for x in documents(shape.rows, shape.sequence_length, mean_tokens(shape, "flex")))

    def seen(row: Tensor, _: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (document_BT[row, key] == document_BT[row, query])

    mask = create_block_mask(seen, shape.rows, None, shape.sequence_length, shape.sequence_length, device=device)

    def attend(q_BTHE: Tensor, k_BTKE: Tensor, v_BTKE: Tensor, visible: Visible, softcap: float | None = None) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q_BTHE, k_BTKE, v_BTKE))
        return flex_attention(q, k, v, block_mask=mask, scale=1.0, enable_gqa=True).transpose(1, 2)

    return attend


def float8_config(device: str) -> Any:
    from torchao.float8 import Float8LinearConfig

    return Float8LinearConfig(emulate=device == "cpu")


@contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Attributes of ``owner`` for the time of a variant."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


# --- updates


def headway_update(shape: Shape, variant: Variant, setting: Setting, patches: ExitStack) -> Step:
    """The engine's step, with what ``variant`` asks for in place of its parts."""
    device = setting.device
    attend = flex_attend(shape, device) if variant.attention == "flex" else attend_sdpa  # the engine's own but on CPUs
    patches.enter_context(replaced(attention_module, attend=attend))
    if variant.compiled:
        patches.enter_context(replaced(kernels_module, rotate=rotate_whole))
    compute = ComputeModel(filled(shape, device), PrecisionSpec(variant.precision))
    if variant.compiled:
        compile_blocks(compute._model.layers, setting.compiler)
    return update_of(compute, shape, mean_tokens(shape, variant.attention))


def plain_step(shape: Shape, variant: Variant, setting: Setting, patches: ExitStack) -> Step:
    """``plain_gpt.py`` on the device."""
    with torch.device(setting.device):
        gpt = PlainGpt(shape.model, shape.sequence_length)
    if variant.precision == "float8":
        from torchao.float8 import convert_to_float8_training

        convert_to_float8_training(
            gpt, config=float8_config(setting.device), module_filter_fn=lambda module, name: name != "lm_head"
        )
    if variant.compiled:
        compile_blocks(gpt.blocks, setting.compiler)
    tokens_BT, targets_BT = (x.to(setting.device) for x in batch(shape))
    return plain_update(gpt, lambda: gpt(tokens_BT, targets_BT), ADAMW.peak_rate)


SIDES = {"headway": headway_update, "plain": plain_step}


def filled(shape: Shape, device: str) -> Decoder:
    """Weights drawn on the device: a billion values of ``init.py`` would cost a part of the budget."""
    with torch.device(device):
        decoder = Decoder(shape.model)
    for parameter in decoder.parameters():
        nn.init.normal_(parameter, std=shape.model.init_std) if parameter.dim() > 1 else nn.init.ones_(parameter)
    return decoder


def compile_blocks(blocks: nn.ModuleList, compiler: str) -> None:
    """Block by block: alike as they are, one compilation serves all of them."""
    for block in blocks:
        block.compile(backend=compiler)


# --- measuring


class OutOfTime(Exception):
    """A variant's seconds are over."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises OutOfTime in the block after ``seconds``, also in the middle of a compilation."""

    def over(*_: Any) -> None:
        raise OutOfTime(f"not finished after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def seconds_each(step: Callable[[], Any], device: str, count: int, until: float) -> list[float]:
    """Seconds of up to ``count`` steps, at least one, none begun after ``until`` (time.monotonic)."""
    return [one for index in range(count) if index == 0 or time.monotonic() < until for one in [one_step(step, device)]]


def one_step(step: Callable[[], Any], device: str) -> float:
    if device == "cpu":
        before = time.perf_counter()
        step()
        return time.perf_counter() - before
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def release(device: str) -> None:
    """What a variant left behind."""
    gc.collect()
    torch._dynamo.reset()
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def measure_variant(variant: Variant, shape: Shape, setting: Setting, chip: Chip | None) -> dict[str, Any]:
    begin = time.monotonic()
    with ExitStack() as patches:
        step = SIDES[variant.side](shape, variant, setting, patches)
        losses = [step() for _ in range(WARM_STEPS)]
        warm = time.monotonic() - begin
        seconds = seconds_each(step, setting.device, setting.steps, begin + 0.8 * setting.variant_seconds)
    median = statistics.median(seconds)
    return {
        "tokens_per_second": round(shape.tokens / median),
        **utilisation(variant, shape, median, chip),
        "peak_gib": None if setting.device == "cpu" else round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "step_ms": round(1e3 * median, 2),
        "steps": len(seconds),
        "warm_up_seconds": round(warm, 1),
        "loss_after_warm_up": round(losses[-1], 3),
    }


def utilisation(variant: Variant, shape: Shape, seconds: float, chip: Chip | None) -> dict[str, float]:
    """MFU against the dense bfloat16 peak (float8 too: above 1 it would beat it), and against the precision's own."""
    if chip is None:
        return {}
    rate = shape.step_flops / seconds
    found = {"mfu_share_of_bfloat16_peak": round(rate / chip.peaks["bfloat16"], 4)} if "bfloat16" in chip.peaks else {}
    if variant.precision in chip.peaks and variant.precision != "bfloat16":
        found[f"share_of_{variant.precision}_peak"] = round(rate / chip.peaks[variant.precision], 4)
    return found


def measure_loss(setting: Setting) -> dict[str, Any]:
    """Head and loss, forward and backward: in chunks, and cross-entropy over all logits in float32."""
    tokens, width, vocabulary = setting.loss
    with torch.device(setting.device):
        hidden_ND = torch.randn(tokens, width).bfloat16().requires_grad_()
        weight_VD = (0.02 * torch.randn(vocabulary, width)).bfloat16().requires_grad_()
        targets_N = torch.randint(0, vocabulary, (tokens,))

    def chunked() -> None:
        sums = loss_sums(hidden_ND[None], weight_VD, targets_N[None], None, Z_WEIGHT)
        torch.autograd.grad(sums.objective_sum / tokens, (hidden_ND, weight_VD))

    def whole() -> None:
        torch.autograd.grad(F.cross_entropy(F.linear(hidden_ND, weight_VD).float(), targets_N), (hidden_ND, weight_VD))

    timed = {kind: measure_kernel(run, setting) for kind, run in (("ours", chunked), ("cross_entropy", whole))}
    figures = {"tokens": tokens, "width": width, "vocabulary": vocabulary, **timed}
    ours, theirs = timed["ours"], timed["cross_entropy"]
    figures["time_over_cross_entropy"] = round(ours["milliseconds"] / theirs["milliseconds"], 3)
    if setting.device != "cpu":
        figures["memory_over_cross_entropy"] = round(ours["peak_gib"] / theirs["peak_gib"], 3)
    return figures


def measure_kernel(run: Callable[[], Any], setting: Setting) -> dict[str, Any]:
    """Median of steps after one to warm up, and the peak above what was held before."""
    run()
    held = 0
    if setting.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
    seconds = seconds_each(run, setting.device, setting.steps, time.monotonic() + 5)
    peak = None if setting.device == "cpu" else round((torch.cuda.max_memory_allocated() - held) / 2**30, 3)
    return {"milliseconds": round(1e3 * statistics.median(seconds), 3), "peak_gib": peak}


def measure_update(setting: Setting) -> dict[str, Any]:
    """One AdamW update of all parameters: fused (ours), torch's default, and parameter by parameter."""
    milliseconds = {}
    for name, options in (("ours", None), ("default", {}), ("loop", {"foreach": False})):
        decoder = filled(setting.shapes[0], setting.device)
        for parameter in decoder.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)
        optimizer = build_optimizer(decoder, ADAMW) if options is None else torch.optim.AdamW(decoder.parameters(), **options)
        milliseconds[name] = measure_kernel(optimizer.step, setting)["milliseconds"]
        del decoder, optimizer
        release(setting.device)
    return {
        "milliseconds": milliseconds,
        "speed_over_default": round(milliseconds["default"] / milliseconds["ours"], 2),
        "speed_over_loop": round(milliseconds["loop"] / milliseconds["ours"], 2),
    }


# --- the whole


def guarded(measure: Callable[[], dict[str, Any]], setting: Setting, deadline: float) -> dict[str, Any]:
    """The figures of ``measure``, or in words why there are none."""
    left = min(setting.variant_seconds, deadline - time.monotonic())
    if left < min(10.0, setting.variant_seconds / 2):
        return {"skipped": "no time left"}
    try:
        release(setting.device)
        with at_most(left):
            return measure()
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"[:500]}


def measure_all(setting: Setting, chip: Chip | None) -> dict[str, Any]:
    deadline = time.monotonic() + setting.budget_seconds
    loss = guarded(lambda: measure_loss(setting), setting, deadline)
    update = guarded(lambda: measure_update(setting), setting, deadline)
    training = []
    for variant in VARIANTS:
        for shape in setting.shapes:
            print(f"{variant.name}, T {shape.sequence_length} ...", file=sys.stderr, flush=True)
            figures = guarded(lambda v=variant, s=shape: measure_variant(v, s, setting, chip), setting, deadline)
            place = {"rows": shape.rows, "sequence_length": shape.sequence_length}
            training.append({"name": f"{variant.name}, T {shape.sequence_length}", **place, **figures})
    return {"training": training, "loss": loss, "update": update}


def chip_called(device_name: str) -> Chip | None:
    """The table's chip for a driver's name of it; None: utilisation is left out."""
    try:
        return find_chip(device_name)
    except ConfigError as error:
        print(f"no peak is known of {device_name!r}: {error}", file=sys.stderr)
        return None


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="a tiny shape on a CPU")
    parser.add_argument("--variant-seconds", type=float, default=40.0)
    parser.add_argument("--budget-seconds", type=float, default=280.0)
    asked = parser.parse_args(arguments)
    if not asked.dry_run and not torch.cuda.is_available():
        print("no CUDA device is available here; --dry-run takes a CPU", file=sys.stderr)
        return 3
    begin = time.monotonic()
    setting = dry_setting(asked) if asked.dry_run else device_setting(asked)
    device_name = "cpu" if asked.dry_run else torch.cuda.get_device_name()
    chip = None if asked.dry_run else chip_called(device_name)
    torch.manual_seed(0)
    spec = setting.shapes[0].model
    figures = {
        "bench": "device",
        "dry_run": asked.dry_run,
        "device": device_name,
        "chip": chip and chip.name,
        "torch": torch.__version__,
        "parameters": count_parameters(spec).total,
        "flops_per_token": {
            s.sequence_length: flops_per_token(spec, s.sequence_length, Convention.CAUSAL) for s in setting.shapes
        },
        **measure_all(setting, chip),
    }
    print(json.dumps({**figures, "seconds": round(time.monotonic() - begin, 1)}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""bfloat16 compute over float32 masters: where gradients arrive, how close, how repeatable."""

import pytest
import torch
from model_cases import plain_context
from test_decoder import documents, model_spec, ready

from headway.base.errors import ConfigError
from headway.model.loss import loss_sums
from headway.model.precision import ComputeModel
from headway.optim.build import build_optimizer
from headway.recipe.spec import OptimizerSpec, PrecisionSpec

BF16_GRADIENT_ERROR = 0.03
"""Relative to the gradient's norm; a wrong scale or a dropped part is at least ten times this."""
ADAMW = OptimizerSpec("adamw", 3e-3, 0.9, 0.95, 1e-8, 0.1, 1.0)


def batch(spec, rows=6, time=32, seed=0):
    tokens = torch.randint(0, spec.vocabulary, (rows, time + 1), generator=torch.Generator().manual_seed(seed))
    lengths = [[time] if r % 3 else [time // 4, time - time // 4] for r in range(rows)]
    return tokens[:, :-1], tokens[:, 1:], *documents(*lengths)


def backward(model: ComputeModel, tokens, targets, position, document, count=None):
    context = plain_context(position, document, 1e4, model.spec.head_width, model.dtype)
    sums = loss_sums(model.forward(tokens, context), model.head_weight, targets, None, 1e-3)
    (sums.objective_sum / (count or targets.numel())).backward()
    return float(sums.nll_sum)


def gradients(model: ComputeModel):
    return {name: p.grad for name, p in model.decoder.named_parameters()}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("qk_norm", [True, False])
def test_bfloat16_gradients_arrive_in_float32_masters(tied, qk_norm):
    spec = model_spec(tied_embeddings=tied, qk_norm=qk_norm)
    wide, narrow = (ComputeModel(ready(spec), PrecisionSpec(c)) for c in ("float32", "bfloat16"))
    losses = [backward(m, *batch(spec)) for m in (wide, narrow)]
    assert losses[1] == pytest.approx(losses[0], rel=5e-3)
    for name, expected in gradients(wide).items():
        found = gradients(narrow)[name]
        assert found.dtype == torch.float32
        assert float((found - expected).norm() / expected.norm()) < BF16_GRADIENT_ERROR, name
    assert {p.dtype for p in narrow.decoder.parameters()} == {torch.float32}


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_L2_micro_batches_add_up_to_the_whole_batch(compute):
    spec = model_spec()
    whole, split = (ComputeModel(ready(spec), PrecisionSpec(compute)) for _ in range(2))
    data = batch(spec)
    backward(whole, *data)
    for rows in (slice(0, 1), slice(1, 4), slice(4, 6)):
        backward(split, *(x[rows] for x in data), count=data[0].numel())
    tolerance = 1e-5 if compute == "float32" else BF16_GRADIENT_ERROR
    for name, expected in gradients(whole).items():
        assert float((gradients(split)[name] - expected).norm() / expected.norm()) < tolerance, name


def test_many_small_gradients_are_summed_in_float32():
    """300 equal micro-batches: a bfloat16 sum stands still near 256 x, a float32 one does not."""
    spec = model_spec(layers=1)
    model, data = ComputeModel(ready(spec), PrecisionSpec("bfloat16")), batch(spec, rows=1, time=4)
    backward(model, *data)
    once = {name: g.clone() for name, g in gradients(model).items()}
    for _ in range(299):
        backward(model, *data)
    for name, total in gradients(model).items():
        torch.testing.assert_close(total, 300 * once[name], rtol=1e-4, atol=1e-6)


def test_refresh_brings_the_update_into_the_copies():
    spec = model_spec()
    model, data = ComputeModel(ready(spec), PrecisionSpec("bfloat16")), batch(spec)
    before = backward(model, *data)
    with torch.no_grad():
        for p in model.decoder.parameters():
            p.add_(0.05)
    model.refresh()
    fresh = ComputeModel(model.decoder, PrecisionSpec("bfloat16"))
    assert backward(model, *data) == backward(fresh, *data) != before
    assert torch.equal(model.head_weight, model.decoder.embed.weight.bfloat16())


def train(compute: str, steps: int, spec=None, seed=0) -> tuple[list[float], dict[str, torch.Tensor]]:
    spec = spec or model_spec()
    model = ComputeModel(ready(spec), PrecisionSpec(compute))
    optimizer = build_optimizer(model.decoder, ADAMW)
    losses = []
    for _ in range(steps):
        losses.append(backward(model, *batch(spec, seed=seed)) / 192)
        optimizer.step()
        optimizer.zero_grad()
        model.refresh()
    return losses, dict(model.decoder.named_parameters())


@pytest.mark.parametrize(("compute", "threads"), [("float32", 1), ("bfloat16", 1), ("bfloat16", 2)])
def test_bitwise_repeatable_at_the_same_thread_count(threads, compute):
    """Also over other work of the allocator in between, and over torch's generator."""
    torch.set_num_threads(threads)
    first = train(compute, 2)
    torch.manual_seed(5)
    ballast = [torch.randn(3, 5 + i) for i in range(7)]  # shifts the alignment of what is allocated next
    second = train(compute, 2)
    assert len(ballast) == 7
    assert first[0] == second[0]
    assert all(torch.equal(a, b) for a, b in zip(first[1].values(), second[1].values(), strict=True))


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_overfits_a_tiny_batch(compute):
    losses, _ = train(compute, 60)
    assert losses[0] > 4.0  # ln 61 = 4.11: a fresh model knows nothing
    assert losses[-1] < 0.3


def test_golden_loss():
    """Change knowingly. float32, one thread; tolerance: rounding of another GEMM library, far below any change of mathematics."""
    losses, _ = train("float32", 3)
    assert losses == pytest.approx([4.3564100, 4.0471076, 3.8168776], rel=2e-5)


def test_unknown_precision_is_refused():
    with pytest.raises(ConfigError, match="float16"):
        ComputeModel(ready(model_spec()), PrecisionSpec("float16"))

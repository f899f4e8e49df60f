"""Chunked loss against plain float32 cross-entropy + z-loss: values, gradients, chunks, masks."""

import pytest
import torch
import torch.nn.functional as F

from headway.model.loss import loss_sums

ROUNDING_FP32 = 1e-5
ROUNDING_BF16 = 2e-2
"""Relative to the norm of the gradient: logits, softmax and hidden states carry 8 bits."""


def problem(tokens=37, width=16, vocabulary=53, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(1, tokens, width, generator=generator)
    weight = torch.randn(vocabulary, width, generator=generator)
    targets = torch.randint(0, vocabulary, (1, tokens), generator=generator)
    mask = torch.rand(1, tokens, generator=generator) < 0.6
    return hidden, weight, targets, mask


def plain(hidden, weight, targets, mask, z_weight):
    logits = (hidden @ weight.T).flatten(0, 1)
    nll = F.cross_entropy(logits, targets.flatten(), reduction="none")
    z = z_weight * logits.logsumexp(-1).square()
    keep = torch.ones_like(nll, dtype=torch.bool) if mask is None else mask.flatten()
    return nll[keep].sum(), z[keep].sum()


def gradients(objective, *tensors):
    return torch.autograd.grad(objective, tensors)


@pytest.mark.parametrize("z_weight", [0.0, 1e-4, 0.1])
@pytest.mark.parametrize("masked", [False, True])
def test_values_and_gradients_equal_plain_cross_entropy(z_weight, masked):
    hidden, weight, targets, mask = problem()
    mask = mask if masked else None
    hidden.requires_grad_(), weight.requires_grad_()
    ours = loss_sums(hidden, weight, targets, mask, z_weight, chunk_tokens=8)
    nll, z = plain(hidden, weight, targets, mask, z_weight)
    torch.testing.assert_close(ours.nll_sum.float(), nll, rtol=ROUNDING_FP32, atol=0)
    torch.testing.assert_close(ours.z_sum.float(), z, rtol=ROUNDING_FP32, atol=1e-12)
    assert torch.equal(ours.objective_sum, ours.nll_sum + ours.z_sum)
    for a, b in zip(gradients(ours.objective_sum / 7, hidden, weight), gradients((nll + z) / 7, hidden, weight), strict=True):
        torch.testing.assert_close(a, b, rtol=ROUNDING_FP32, atol=ROUNDING_FP32)


def test_gradient_in_float64_by_finite_differences():
    hidden, weight, targets, mask = problem(tokens=5, width=3, vocabulary=7)
    hidden, weight = hidden.double().requires_grad_(), weight.double().requires_grad_()
    objective = lambda h, w: loss_sums(h, w, targets, mask, 0.05, chunk_tokens=2).objective_sum  # noqa: E731
    assert torch.autograd.gradcheck(objective, (hidden, weight))


@pytest.mark.parametrize("chunk", [1, 5, 36, 37, 1000])
def test_chunk_size_changes_nothing_but_rounding(chunk):
    hidden, weight, targets, mask = problem()
    hidden.requires_grad_(), weight.requires_grad_()
    whole, cut = (loss_sums(hidden, weight, targets, mask, 1e-3, chunk_tokens=c) for c in (37, chunk))
    torch.testing.assert_close(whole.objective_sum, cut.objective_sum, rtol=1e-6, atol=0)
    for a, b in zip(*(gradients(s.objective_sum, hidden, weight) for s in (whole, cut)), strict=True):
        torch.testing.assert_close(a, b, rtol=ROUNDING_FP32, atol=ROUNDING_FP32)


def test_L1_masked_tokens_cannot_touch_loss_or_gradient():
    """Not even with infinite hidden states or targets outside the vocabulary: 0 x inf would be NaN."""
    hidden, weight, targets, mask = problem()
    poisoned, targets_out = hidden.clone(), targets.clone()
    poisoned[~mask], targets_out[~mask] = torch.inf, -100
    clean = hidden.clone().requires_grad_()
    poisoned.requires_grad_(), weight.requires_grad_()
    a = loss_sums(clean, weight, targets, mask, 1e-3, chunk_tokens=8)
    b = loss_sums(poisoned, weight, targets_out, mask, 1e-3, chunk_tokens=8)
    assert torch.equal(a.objective_sum, b.objective_sum)
    assert torch.equal(*(gradients(s.objective_sum, x)[0][mask] for s, x in ((a, clean), (b, poisoned))))
    (grad_weight,) = gradients(loss_sums(poisoned, weight, targets_out, mask, 1e-3, chunk_tokens=8).objective_sum, weight)
    assert grad_weight.isfinite().all()


def test_L1_split_batches_with_unequal_masks_add_up_to_the_whole():
    hidden, weight, targets, mask = problem(tokens=40)
    weight.requires_grad_()
    whole = loss_sums(hidden, weight, targets, mask, 1e-3)
    parts = [loss_sums(hidden[:, s], weight, targets[:, s], mask[:, s], 1e-3) for s in (slice(0, 13), slice(13, 40))]
    torch.testing.assert_close(whole.objective_sum, parts[0].objective_sum + parts[1].objective_sum, rtol=1e-6, atol=0)
    (grad,) = gradients(whole.objective_sum, weight)
    split = sum(gradients(p.objective_sum, weight)[0] for p in parts)
    torch.testing.assert_close(grad, split, rtol=ROUNDING_FP32, atol=ROUNDING_FP32)


def test_extreme_logits_stay_finite():
    hidden, weight, targets, _ = problem()
    hidden = (hidden * 1e4).requires_grad_()
    sums = loss_sums(hidden, weight, targets, None, 1e-4)
    nll, _ = plain(hidden, weight, targets, None, 0.0)
    torch.testing.assert_close(sums.nll_sum.float(), nll, rtol=1e-5, atol=0)
    assert gradients(sums.objective_sum, hidden)[0].isfinite().all()


def test_bfloat16_stays_near_float32():
    hidden, weight, targets, mask = problem(tokens=64, width=32)
    wide = (hidden.bfloat16().float().requires_grad_(), weight.bfloat16().float().requires_grad_())
    narrow = tuple(x.detach().bfloat16().requires_grad_() for x in wide)
    a, b = (loss_sums(*x, targets, mask, 1e-3, chunk_tokens=16) for x in (wide, narrow))
    torch.testing.assert_close(a.objective_sum, b.objective_sum, rtol=5e-3, atol=0)
    for x, y in zip(gradients(a.objective_sum, *wide), gradients(b.objective_sum, *narrow), strict=True):
        assert y.dtype == torch.bfloat16
        assert (x - y.float()).norm() / x.norm() < ROUNDING_BF16


def test_no_gradient_work_under_no_grad():
    hidden, weight, targets, _ = problem()
    with torch.no_grad():
        sums = loss_sums(hidden, weight, targets, None, 0.0)
    assert not sums.objective_sum.requires_grad
    assert float(sums.z_sum) == 0.0

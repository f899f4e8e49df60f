"""Dropout keyed by position: the same values for every cut of a batch; statistics; gradients."""

import math

import pytest
import torch

from headway.model.dropout import DropoutKey, drop

ROWS, LENGTH, WIDTH = 6, 5, 7  # of the step's batch; 35 values a row: rows begin inside a block of words


def batch(rows=tuple(range(ROWS)), dtype=torch.float32) -> torch.Tensor:
    """Rows of one step's batch, no value 0."""
    x = torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0)).abs().add(0.1)
    return x[list(rows)].to(dtype)


def key(rows=tuple(range(ROWS)), *, seed=3, step=11, share=0.4) -> DropoutKey:
    return DropoutKey(seed, step, tuple(rows), share)


CUTS = {
    "row by row": [[0], [1], [2], [3], [4], [5]],
    "two micro-batches": [[0, 1, 2], [3, 4, 5]],
    "unequal": [[0], [1, 2, 3, 4], [5]],
    "ranks take turns": [[0, 2, 4], [1, 3, 5]],
    "another order": [[5, 0], [3, 1, 4], [2]],
}


@pytest.mark.parametrize("cut", CUTS)
def test_any_cut_of_the_batch_drops_the_same_values(cut):
    whole = drop(batch(), key(), "layers.0.ffn")
    for rows in CUTS[cut]:
        assert torch.equal(drop(batch(rows), key(rows), "layers.0.ffn"), whole[rows])


def test_words_are_those_of_the_logical_tensor():
    """Row r begins at word r T D of the stream: one long row drops what many short ones do."""
    ones = torch.ones(1, ROWS * LENGTH, WIDTH)
    long = drop(ones, key([0]), "embed").view(ROWS, LENGTH, WIDTH)
    assert torch.equal(long, drop(torch.ones(ROWS, LENGTH, WIDTH), key(), "embed"))


def test_values_of_one_key_stay_as_they_are():
    """Change knowingly: a run that was stopped before the change goes on with other masks."""
    kept = drop(torch.ones(2, 1, 12), DropoutKey(1, 2, (0, 3), 0.5), "layers.0.attention").ne(0).int()
    assert ["".join(map(str, row)) for row in kept[:, 0].tolist()] == FROZEN


FROZEN = ["110101000011", "111010100101"]


@pytest.mark.parametrize(
    ("other", "site"),
    [(key(seed=4), "embed"), (key(step=12), "embed"), (key(), "layers.0.ffn"), (key([1, 0, 2, 3, 4, 5]), "embed")],
    ids=["seed", "step", "site", "row"],
)
def test_another_seed_step_site_or_row_drops_others(other, site):
    x = torch.ones(ROWS, 40, 40)
    first, second = drop(x, key(), "embed").eq(0), drop(x, other, site).eq(0)
    expected = 2 * 0.4 * 0.6  # of independent masks
    different = (first[0] != second[0]).double().mean().item()
    assert different == pytest.approx(expected, abs=5 * math.sqrt(0.25 / 1600))


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_the_share_is_dropped_and_the_mean_stays(share):
    """Within five standard deviations of 640,000 draws; rows, positions and columns alike."""
    out = drop(torch.ones(8, 200, 400), key(range(8), share=share), "embed")
    deviation = math.sqrt(share * (1 - share) / out.numel())
    dropped = out.eq(0).double()
    assert dropped.mean().item() == pytest.approx(share, abs=5 * deviation)
    assert out.mean().item() == pytest.approx(1, abs=5 * deviation / (1 - share) + 1e-6)
    for axes, count in (((1, 2), 8), ((0, 2), 200), ((0, 1), 400)):
        assert (dropped.mean(axes) - share).abs().max() < 6 * deviation * math.sqrt(count)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_kept_values_are_scaled_in_their_dtype(dtype):
    x = batch(dtype=dtype)
    out = drop(x, key(share=0.3), "embed")
    kept = out != 0
    assert out.dtype == dtype
    assert torch.equal(out[kept], (x * (1 / 0.7))[kept])
    assert torch.equal(kept, drop(batch(), key(share=0.3), "embed") != 0)
    assert 0 < kept.sum() < x.numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_pass_where_values_do(dtype):
    x, grad = batch(dtype=dtype).requires_grad_(), torch.full((ROWS, LENGTH, WIDTH), 3.0, dtype=dtype)
    out = drop(x, key(), "embed")
    (found,) = torch.autograd.grad(out, x, grad)
    assert torch.equal(found, torch.where(out != 0, grad * (1 / 0.6), 0))
    assert found.dtype == dtype
    assert torch.equal(grad, torch.full_like(grad, 3.0))


def test_gradients_by_finite_differences():
    x = batch(dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: drop(x, key(), "embed"), (x,))


def test_a_dropped_infinity_is_zero():
    x = torch.full((ROWS, LENGTH, WIDTH), torch.inf).requires_grad_()
    out = drop(x, key(), "embed")
    assert not out.isnan().any()
    assert out.eq(0).any()


def test_without_a_key_or_a_share_nothing_happens():
    x = batch()
    assert drop(x, None, "embed") is x
    assert drop(x, key(share=0.0), "embed") is x


def test_torchs_generator_plays_no_part():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = drop(batch(), key(), "embed")
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(drop(batch(), key(), "embed"), first)


def test_every_row_of_a_micro_batch_is_named():
    with pytest.raises(AssertionError, match="6 rows, 2 of them named"):
        drop(batch(), key([0, 1]), "embed")

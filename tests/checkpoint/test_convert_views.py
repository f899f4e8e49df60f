"""Views: every piece of rows is what the whole is, whichever rows are asked for; every step has an exact way back."""

from __future__ import annotations

import itertools

import pytest
import torch

from headway.base.errors import RunError
from headway.checkpoint.convert import views
from headway.checkpoint.convert.architectures.steps import (
    Affine,
    Each,
    Join,
    JoinByHead,
    Permute,
    PermuteTail,
    SwapHalves,
    Transpose,
    Unstack,
    neighbours,
)
from headway.checkpoint.convert.contents import Kind
from headway.checkpoint.tensors import DTYPES

CODES = {dtype: code for code, dtype in DTYPES.items()}


class Held:
    """A view of a tensor in memory."""

    def __init__(self, value: torch.Tensor):
        self.value = value
        self.kind = Kind(dtype=CODES[value.dtype], shape=tuple(value.shape))

    def rows(self, first, last):
        return self.value[first:last].contiguous().flatten().view(torch.uint8).numpy()


def whole(view):
    return part(view, 0, view.kind.rows)


def part(view, first, last):
    values = torch.from_numpy(view.rows(first, last).copy()).view(DTYPES[view.kind.dtype])
    return values.view(last - first, *view.kind.shape[1:])


def random(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


A, B, C = random(12, 6), random(6, 6), random(6, 6) + 1
ORDER = neighbours(4, kept=2)

STEPS = {
    "join": (Join((12, 6, 6)), [A, B, C], [torch.cat((A, B, C))]),
    "join by head": (
        JoinByHead(2, 3, 2),
        [B, C],
        [torch.cat((B[:2], C[:2], B[2:4], C[2:4], B[4:], C[4:]))],
    ),
    "transpose": (Transpose(), [A], [A.T]),
    "unstack": (Unstack(3), [random(3, 4, 5)], list(random(3, 4, 5))),
    "permute": (Permute(ORDER), [A], [torch.cat([half[list(ORDER)] for half in A.split(6)])]),
    "permute the tail": (PermuteTail(8, neighbours(4)), [A], [torch.cat((A[:8], A[8:][[0, 2, 1, 3]]))]),
    "swap halves": (SwapHalves(3), [A], [torch.cat((A[:, 3:], A[:, :3]), 1)]),
    "affine": (Affine(2.0, -1.0), [A], [A * 2 - 1]),
    "each its own": (Each((Affine(4.0), Affine(1.0))), [A, B], [A * 4, B]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", STEPS)
def test_steps_move_rows_and_back(name, dtype, monkeypatch):
    step, ours, theirs = STEPS[name]
    ours = [tensor.to(dtype) for tensor in ours]
    for piece in (1, 1 << 20):
        monkeypatch.setattr(views, "PIECE_BYTES", piece)
        there = step.there(tuple(map(Held, ours)))
        for view, expected in zip(there, theirs, strict=True):
            assert view.kind.shape == tuple(expected.shape)
            if name not in ("affine", "each its own") or dtype == torch.float32:
                assert torch.equal(whole(view), expected.to(dtype))
        for view, expected in zip(step.back(there), ours, strict=True):
            assert torch.allclose(whole(view), expected.to(whole(view).dtype), rtol=1e-6, atol=1e-6)
            assert torch.equal(whole(view), expected.to(whole(view).dtype)) or "affine" in name


@pytest.mark.parametrize("name", STEPS)
def test_any_rows_are_those_of_the_whole(name, monkeypatch):
    monkeypatch.setattr(views, "PIECE_BYTES", 50)
    step, ours, _ = STEPS[name]
    for view in (*step.there(tuple(map(Held, ours))), *step.back(step.there(tuple(map(Held, ours))))):
        everything = whole(view)
        for first, last in itertools.combinations(range(view.kind.rows + 1), 2):
            assert torch.equal(part(view, first, last), everything[first:last]), (first, last)


def test_computed_values_keep_what_half_precision_would_lose():
    gains = torch.tensor([1.0078125, 0.9921875, -3.0], dtype=torch.bfloat16)
    (less,) = Affine(1.0, -1.0).there((Held(gains),))
    assert less.kind.dtype == "F32"
    assert torch.equal(whole(less), gains.float() - 1)
    assert torch.equal(whole(views.Cast(less, "BF16")), (gains.float() - 1).bfloat16())


def test_neighbours_stand_beside_each_other():
    assert neighbours(6) == (0, 3, 1, 4, 2, 5)
    assert neighbours(4, kept=2) == (0, 1, 2, 4, 3, 5)


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(RunError, match="one type and shape"):
        _ = views.Joined((Held(A), Held(random(4, 5)))).kind
    with pytest.raises(RunError, match="one type and shape"):
        _ = views.Stacked((Held(A), Held(A.bfloat16()))).kind

"""Some of a row's tokens: their places, what is cut of whole rows, and attention of their queries alone."""

import pytest
import torch

from headway.model import attention
from headway.model.attention import attend, attend_sdpa
from headway.model.columns import Columns
from headway.model.context import Context, make_context
from headway.model.dropout import DropoutKey, dropped
from headway.model.ranks import Chunks, Ranks
from headway.recipe.spec import ModelSpec

LENGTH = 96
SOME = Columns(16, (range(2, 5), range(12, 14)))
ROUNDING_FP64 = 1e-12
"""Of values of order one: hundreds of float64 roundings in another order."""


def test_runs_in_the_order_of_the_row():
    assert SOME.count == 5
    assert SOME.tensor(torch.device("cpu")).tolist() == [2, 3, 4, 12, 13]
    assert not SOME.is_all
    assert Columns.whole(16).is_all
    assert Columns.of(16, range(4), range(4, 16)).is_all  # neighbours are one run


def test_cut_of_whole_rows():
    rows_BT = torch.arange(32).view(2, 16)
    assert SOME.of_row(rows_BT).tolist() == [[2, 3, 4, 12, 13], [18, 19, 20, 28, 29]]
    assert Columns.whole(16).of_row(rows_BT) is rows_BT


def test_a_part_of_them():
    assert SOME.part(slice(1, 4)) == Columns(16, (range(3, 5), range(12, 13)))
    assert SOME.part(slice(3, 5)) == Columns(16, (range(12, 14),))
    assert SOME.part(slice(5, 5)) == Columns(16, ())


def test_pieces():
    assert list(SOME.pieces()) == [(slice(0, 3), 2), (slice(3, 5), 12)]
    assert list(SOME.pieces(2)) == [(slice(0, 2), 2), (slice(2, 3), 4), (slice(3, 5), 12)]
    assert list(Columns.whole(5).pieces(2)) == [(slice(0, 2), 0), (slice(2, 4), 2), (slice(4, 5), 4)]


def test_dropout_of_some_tokens_is_that_of_the_row():
    whole = dropped(DropoutKey(1, 2, (5, 3), 0.4), "embed", torch.Size([2, 16, 7]))
    some = dropped(DropoutKey(1, 2, (5, 3), 0.4, SOME), "embed", torch.Size([2, 5, 7]))
    assert torch.equal(some, SOME.of_row(whole))
    with pytest.raises(AssertionError, match="16 tokens of a row, and the places of 5"):
        dropped(DropoutKey(1, 2, (5, 3), 0.4, SOME), "embed", torch.Size([2, 16, 7]))


class Kept(Chunks):
    """As on one of several ranks."""

    def __init__(self, *runs: range):
        self.kept = Columns.of(LENGTH, *runs)

    def mine(self, x_BT: torch.Tensor) -> torch.Tensor:
        return self.kept.of_row(x_BT)

    def columns(self, length: int) -> Columns:
        assert length == LENGTH
        return self.kept


PAIRS = [(range(i * 12, i * 12 + 12), range((7 - i) * 12, (7 - i) * 12 + 12)) for i in range(4)]
"""The chunks of four ranks."""
DOCUMENTS = {
    "one document": [[96], [96]],
    "documents that end in a chunk, at its border, over several": [[5, 31, 12, 30, 18], [96]],
    "short documents": [[1] * 96, [4] * 24],
}


def context_of(rows: list[list[int]], window: int | None, ranks: Ranks) -> Context:
    model = ModelSpec(1, 8, 1, 1, 8, 8, 8, 1e4, 1e-5, False, True, 0.1, window=window)
    position = torch.tensor([[p for n in row for p in range(n)] for row in rows])
    document = torch.tensor([[i for i, n in enumerate(row) for _ in range(n)] for row in rows])
    return make_context(position, document, model, model.rope, torch.float64, ranks)


def qkv() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 6), (2, 6), (2, 5)]
    return [torch.randn(2, LENGTH, *s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]


@pytest.mark.parametrize("ours", [attend, attend_sdpa], ids=["blocks", "torch's"])
@pytest.mark.parametrize("queries", [128, 32, 8])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (37, None), (3, 1.5)])
@pytest.mark.parametrize("documents", DOCUMENTS.values(), ids=DOCUMENTS)
def test_attention_of_chunks_is_that_of_the_row(monkeypatch, ours, queries, window, softcap, documents):
    """Outputs are cut, gradients of queries too; gradients of keys and values add up over the ranks."""
    monkeypatch.setattr(attention, "BLOCK_QUERIES", queries)
    monkeypatch.setattr(attention, "KEY_STEP", 8)
    inputs = qkv()
    whole = attend(*inputs, context_of(documents, window, Ranks()).visible(window is not None), softcap)
    upstream = torch.randn(whole.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    expected = torch.autograd.grad(whole, inputs, upstream)
    sums = [torch.zeros_like(x) for x in inputs]
    for pair in PAIRS:
        chunks = Kept(*pair)
        visible = context_of(documents, window, Ranks(chunks)).visible(window is not None)
        q, k, v = inputs
        found = ours(chunks.mine(q), k, v, visible, softcap)
        torch.testing.assert_close(found, chunks.mine(whole), rtol=0, atol=ROUNDING_FP64)
        for total, gradient in zip(sums, torch.autograd.grad(found, inputs, chunks.mine(upstream)), strict=True):
            total += gradient
    for total, gradient in zip(sums, expected, strict=True):
        torch.testing.assert_close(total, gradient, rtol=0, atol=10 * ROUNDING_FP64)


def test_causal_work_is_even_over_ranks():
    pairs = [sum(column + 1 for run in pair for column in run) for pair in PAIRS]
    assert len(set(pairs)) == 1


def test_context_of_chunks():
    context = context_of([[40, 56], [96]], 7, Ranks(Kept(*PAIRS[1])))
    whole = context_of([[40, 56], [96]], 7, Ranks())
    columns = Kept(*PAIRS[1]).kept
    assert context.cos_BsE is not None
    assert whole.cos_BsE is not None
    assert torch.equal(context.cos_BsE, columns.of_row(whole.cos_BsE))
    assert torch.equal(context.full.start_Bs, columns.of_row(whole.full.start_Bs))
    assert torch.equal(context.windowed.start_Bs, columns.of_row(whole.windowed.start_Bs))
    assert torch.equal(context.full.mask_BsT, columns.of_row(whole.full.mask_BsT))
    assert torch.equal(context.full.sees_BsT(), columns.of_row(whole.full.sees_BsT()))
    assert context.position_BT.shape == context.document_BT.shape == (2, LENGTH)  # these stay whole

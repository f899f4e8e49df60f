"""Held-out loss by position and in bits per byte: against the definition, and the same under any cut, replica and layout."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from test_held_out_and_sample import MODEL, ROPE, compute_model

from headway.evaluate.held_out import BUCKETS, Buckets, HeldOut, Share, bucket_of, held_out_loss, windows_at_once
from headway.model.context import make_context
from headway.model.loss import OutputRule, loss_sums
from headway.model.token_loss import token_losses

T, ROWS = 20, 9


@dataclass(frozen=True)
class Batch:
    tokens_BT: np.ndarray
    targets_BT: np.ndarray
    document_BT: np.ndarray
    position_BT: np.ndarray
    in_document_BT: np.ndarray
    scored_BT: np.ndarray

    def rows(self, start: int, stop: int) -> Batch:
        return Batch(*(kind[start:stop] for kind in vars(self).values()))


def whole_batch() -> Batch:
    """Documents of all lengths over the rows; the last row ends early."""
    random = np.random.default_rng(4)
    ids = random.integers(1, 29, ROWS * T + 1)
    starts = np.cumsum(random.integers(1, 40, 40))
    starts = np.concatenate([[0], starts[starts < ROWS * T]])
    ids[starts] = 0
    at = np.arange(ROWS * T + 1)
    number = starts.searchsorted(at, "right") - 1
    place = at - starts[number]
    grid = at[:-1].reshape(ROWS, T)
    first_of_row = np.maximum(starts[number[grid]], grid[:, :1])
    targets = ids[1:].reshape(ROWS, T).copy()
    scored = np.ones_like(targets, bool)
    scored[-1, 13:] = False
    document = number[grid] - number[grid[:, :1]]
    return Batch(ids[:-1].reshape(ROWS, T), targets, document, grid - first_of_row, place[1:].reshape(ROWS, T), scored)


BYTES = np.random.default_rng(5).integers(0, 9, 29)


def expected(model, batch: Batch) -> dict[str, dict[int, np.ndarray]]:
    """(targets, nats, bytes) by bucket, target after target."""
    tokens, document, position = (torch.from_numpy(x).long() for x in (batch.tokens_BT, batch.document_BT, batch.position_BT))
    with torch.no_grad():
        hidden = model.forward(tokens, make_context(position, document, MODEL, ROPE, torch.float32))
        logits = (hidden @ model.head_weight.T).log_softmax(-1).double().numpy()
    found: dict[str, dict[int, np.ndarray]] = {"window": {}, "document": {}}
    for row, column in zip(*np.nonzero(batch.scored_BT), strict=True):
        target = batch.targets_BT[row, column]
        value = np.array([1, -logits[row, column, target], BYTES[target]])
        for name, at in (("window", int(column)), ("document", int(batch.in_document_BT[row, column]))):
            bucket = at.bit_length()
            found[name][bucket] = found[name].get(bucket, 0) + value
    return found


def test_every_target_is_in_its_bucket():
    model, batch = compute_model(), whole_batch()
    result = held_out_loss(model, [batch], ROPE, token_bytes=BYTES)
    wanted = expected(model, batch)
    assert result.targets == ROWS * T - 7
    for name, buckets in (("window", result.in_window), ("document", result.in_document)):
        assert len(buckets.targets) == max(wanted[name]) + 1
        for bucket in range(len(buckets.targets)):
            targets, nll, size = wanted[name].get(bucket, np.zeros(3))
            assert (buckets.targets[bucket], buckets.bytes[bucket]) == (targets, size)
            assert buckets.nll[bucket] == pytest.approx(nll, rel=1e-5)
        assert sum(buckets.nll) == result.nll_sum
        assert sum(buckets.bytes) == result.bytes
    assert result.in_window.targets[:3] == (ROWS, ROWS, 2 * ROWS)
    assert result.in_document.targets[0] == (batch.targets_BT == 0).sum(), "document tokens"
    assert result.bits_per_byte == pytest.approx(result.nll_sum / math.log(2) / result.bytes)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_any_batch_size_gives_the_same_counts_and_nearly_the_same_loss(size):
    model, batch = compute_model(), whole_batch()
    whole = held_out_loss(model, [batch], ROPE, token_bytes=BYTES)
    cut = held_out_loss(model, [batch.rows(at, at + size) for at in range(0, ROWS, size)], ROPE, token_bytes=BYTES)
    assert (cut.targets, cut.bytes) == (whole.targets, whole.bytes)
    for one, other in ((cut.in_window, whole.in_window), (cut.in_document, whole.in_document)):
        assert (one.targets, one.bytes) == (other.targets, other.bytes)
        assert one.nll == pytest.approx(other.nll, rel=1e-6)


def test_the_same_batches_in_any_order_among_any_replicas_to_the_bit():
    model, batch = compute_model("bfloat16"), whole_batch()
    cut = [batch.rows(at, at + 2) for at in range(0, ROWS, 2)]
    whole = held_out_loss(model, cut, ROPE, token_bytes=BYTES)
    assert held_out_loss(model, cut[::-1], ROPE, token_bytes=BYTES) == whole
    for count in (2, 3, 7):
        sums = []

        def kept(own, sums=sums):
            sums.append(own)
            return own

        for index in range(count):
            held_out_loss(model, cut, ROPE, Share(index=index, count=count, total=kept), BYTES)
        together = held_out_loss(model, cut, ROPE, Share(total=lambda _, sums=sums: torch.stack(sums).sum(0)), BYTES)
        assert together == whole


def test_a_loss_that_is_no_number_is_told_and_the_other_positions_stay():
    class Sick:
        def __init__(self, inner):
            self.__dict__.update(inner=inner, spec=inner.spec, dtype=inner.dtype, ranks=inner.ranks)

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def token_losses(self, hidden, targets):
            losses = self.inner.token_losses(hidden, targets)
            losses[0, 3] = torch.inf
            return losses

    model, batch = compute_model(), whole_batch()
    result = held_out_loss(Sick(model), [batch], ROPE)
    assert math.isnan(result.nll_sum)
    assert result.targets == ROWS * T - 7
    assert all(map(math.isfinite, result.in_window.nll))


def test_losses_of_tokens_add_up_to_the_loss_that_trains():
    random = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(3, 50, 16, generator=random), torch.randn(70, 16, generator=random)
    targets = torch.randint(0, 70, (3, 50), generator=random)
    for rule in (OutputRule(), OutputRule(0.3, 5.0)):
        for chunk in (1, 7, 1_000):
            found = token_losses(hidden, weight, targets, rule, chunk)
            assert found.shape == targets.shape
            assert float(found.double().sum()) == pytest.approx(
                float(loss_sums(hidden, weight, targets, None, 0.0, rule).nll_sum), rel=1e-6
            )


def test_buckets_are_powers_of_two():
    at = np.array([0, 1, 2, 3, 4, 7, 8, 2**20 - 1, 2**20, 2**40])
    assert bucket_of(at).tolist() == [0, 1, 2, 2, 3, 3, 4, 20, 21, 41]
    assert bucket_of(np.array([2**46])).max() < BUCKETS


def test_nothing_scored_has_no_loss_and_no_buckets():
    empty = held_out_loss(compute_model(), [], ROPE)
    assert (empty.targets, empty.in_window, empty.bits_per_byte) == (0, Buckets((), (), ()), None)
    assert HeldOut(nll_sum=1.0, targets=1).by_position() == {}


def test_batches_that_know_no_documents_have_no_places_in_them():
    batch = whole_batch()
    plain = type("Plain", (), {name: value for name, value in vars(batch).items() if name != "in_document_BT"})()
    result = held_out_loss(compute_model(), [plain], ROPE)
    assert result.in_document is None
    assert result == replace(held_out_loss(compute_model(), [batch], ROPE), in_document=None)


def test_how_many_windows_at_once_follows_from_their_length_alone():
    assert [windows_at_once(length) for length in (64, 4_096, 4_097, 2**20)] == [64, 1, 1, 1]

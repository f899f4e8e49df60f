"""A checksum sees every single bit, on the CPU and by the arithmetic of devices; copies are judged by majority."""

from __future__ import annotations

import pytest
import torch

from headway.checkpoint import checksum
from headway.checkpoint.agreement import Disagreement, judged
from headway.checkpoint.checksum import checksums, device_checksum

KINDS = {"host": lambda t: checksums({"t": t})["t"], "device": lambda t: int(device_checksum(t))}


@pytest.fixture(autouse=True)
def _short_stretches(monkeypatch):
    """Several of them in a small tensor."""
    monkeypatch.setattr(checksum, "STRETCH_WORDS", 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8, torch.bool])
def test_every_flipped_bit_shows(kind, dtype):
    tensor = torch.randn(13, 3).mul(3).to(dtype)
    of, memory = KINDS[kind], tensor.view(-1).view(torch.uint8)
    usual, seen = of(tensor), set()
    bits = range(1) if dtype == torch.bool else range(8)
    for byte in range(len(memory)):
        for bit in bits:
            memory[byte] ^= 1 << bit
            seen.add(of(tensor))
            memory[byte] ^= 1 << bit
    assert of(tensor) == usual
    assert usual not in seen
    assert len(seen) == len(memory) * len(bits), "flips of different bits give different numbers"


@pytest.mark.parametrize("kind", KINDS)
def test_order_length_and_layout_count_as_bytes_do(kind):
    of, rows = KINDS[kind], torch.arange(24.0).view(6, 4)
    assert of(rows) != of(rows.flip(0)), "the same words in another order"
    assert of(rows) != of(torch.cat([rows, torch.zeros(1, 4)])), "zeros behind it"
    assert of(rows[1:]) == of(rows[1:].clone()), "wherever it lies in memory"
    assert of(rows.t()) == of(rows.t().contiguous())
    assert of(rows[:0]) == of(torch.empty(0))


def held(**by_tensor):
    return {(name.replace("_", "/"), (0,), (4,)): by_rank for name, by_rank in by_tensor.items()}


def test_P7_the_copy_that_most_do_not_have_is_the_odd_one():
    found = judged(held(param_w={0: 5, 1: 5, 2: 9}, m_w={0: 1, 1: 1, 2: 1}))
    assert found == Disagreement(names=("param/w",), holders=(0, 1, 2), odd=(2,))


def test_P7_two_copies_or_three_kinds_have_no_majority():
    assert judged(held(param_w={0: 5, 1: 6})).odd == ()
    assert judged(held(param_w={0: 5, 1: 6, 2: 7})).odd == ()
    assert judged(held(param_w={0: 5, 1: 5, 2: 6, 3: 6})).odd == ()


def test_P7_a_majority_in_one_tensor_does_not_clear_the_holders_of_another():
    found = judged(held(param_w={0: 5, 1: 5, 2: 9}, param_v={0: 1, 3: 2}))
    assert (found.odd, found.holders) == ((), (0, 1, 2, 3))

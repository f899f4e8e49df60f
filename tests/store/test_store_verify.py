"""Reading whole checkpoints again: which block, what stays in memory, how far it is, and what a glance tells without the data."""

from __future__ import annotations

import os

import numpy as np
import pytest
from store_cases import flip_bit, make_run, save

from headway.store import verify as verifying
from headway.store.audit import audit
from headway.store.manifest import BLOCK_BYTES, load_receipt
from headway.store.verify import Pages, drop_cached, outline, verify

DATA = "rank00000.safetensors"
ELEMENTS = 3 * BLOCK_BYTES // 4 + 5  # four blocks, the last of 20 bytes


@pytest.fixture
def directory(tmp_path):
    run = make_run(tmp_path / "run")
    return run.checkpoints / save(run, 1, 1, {"a": np.arange(3, dtype="f4"), "w": np.arange(ELEMENTS, dtype="f4")})


def damage_block(directory, index):
    chunk = load_receipt(directory, 0).tensors["w"].chunks[0]
    flip_bit(directory / DATA, chunk.at + index * BLOCK_BYTES + 7)


@pytest.mark.parametrize("pages", list(Pages))
@pytest.mark.parametrize("index", [0, 2, 3])
def test_the_block_is_named(directory, pages, index):
    assert verify(directory, pages=pages).ok
    damage_block(directory, index)
    assert verify(directory, pages=pages).reasons == (f"{DATA}: w block {index}: digest differs",)
    assert outline(directory).ok, "a glance does not read the data"


def test_progress_is_told_every_byte_of_the_data(directory):
    told = []
    damage_block(directory, 1)
    verify(directory, progress=told.append)
    assert told == [12, BLOCK_BYTES, BLOCK_BYTES, BLOCK_BYTES, 20]


def test_a_glance_sees_sizes_and_headers(directory):
    assert (outline(directory).ok, outline(directory).bytes_read) == (True, 0)
    flip_bit(directory / DATA, 20)
    assert "header differs" in outline(directory).reasons[0]
    os.truncate(directory / DATA, 1000)
    assert "bytes instead of" in outline(directory).reasons[0]


def test_pages_that_nobody_needs_are_dropped_block_by_block(directory, monkeypatch):
    """What makes it fast on large files: the same pages serve all blocks."""
    advised = []
    monkeypatch.setattr(os, "posix_fadvise", lambda descriptor, at, size, advice: advised.append((at, size, advice)))
    verify(directory)
    assert all(advice == os.POSIX_FADV_SEQUENTIAL for _, _, advice in advised)
    advised.clear()
    verify(directory, pages=Pages.DROPPED)
    ends = [size for at, size, advice in advised if advice == os.POSIX_FADV_DONTNEED and at == 0]
    chunks = [load_receipt(directory, 0).tensors[name].chunks[0] for name in ("a", "w")]
    blocks = [chunks[1].at + index * BLOCK_BYTES for index in (1, 2, 3)]
    assert ends == [chunks[0].at + 12, *blocks, chunks[1].at + chunks[1].nbytes]


def test_an_audit_asks_the_storage_and_tells_its_speed(directory, monkeypatch):
    from headway.base.clocks import FakeClock
    from headway.store import audit as auditing

    clock, order = FakeClock(), []

    def slow(directory, **how):
        order.append("verify")
        assert how["pages"] is Pages.DROPPED
        clock.sleep(2)
        return verify(directory, **how)

    monkeypatch.setattr(auditing, "verify", slow)
    monkeypatch.setattr(auditing, "drop_cached", lambda directory: (order.append("drop"), drop_cached(directory)))
    found = audit(directory, clock=clock)
    assert order == ["drop", "verify"]
    assert (found.ok, found.seconds) == (True, 2.0)
    assert found.bytes_per_second == (directory / DATA).stat().st_size / 2


def test_damage_costs_no_more_reasons_than_are_read(directory):
    for index in range(4):
        damage_block(directory, index)
    reasons = verify(directory).reasons
    assert len(reasons) == verifying.REASONS_PER_FILE + 1
    assert reasons[-1] == f"{DATA}: 1 more"

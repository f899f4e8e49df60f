"""A leak is named with the time that is left; caches that fill are not. Storage that becomes slow."""

from __future__ import annotations

import numpy as np
import pytest

from headway.monitor.blocks import Block
from headway.monitor.growth import MemoryGrowth
from headway.monitor.storage import DataWaits, slow_saves

MIB, GIB = 2**20, 2**30


def block(number: int, rss: list[int], share: list[float] | None = None) -> Block:
    one = [0] * len(rss)
    share = share or [0.0] * len(rss)
    times = {"work_ns": one, "wait_ns": one, "data_ns": one, "excess": [0.0] * len(rss)}
    return Block(first=8 * number + 1, last=8 * number + 8, steps=8, seconds=2.0, **times, data_share=share, rss=rss, peak=rss)


def grown(series: np.ndarray, room: int = 64 * GIB) -> list:
    """``series``: bytes of [block, rank]."""
    rules = MemoryGrowth([room] * series.shape[1])
    return [found for number, row in enumerate(series) for found in rules.take(block(number, [int(x) for x in row]))]


def clean(seed: int, shape: str, blocks: int = 400) -> np.ndarray:
    random, place = np.random.default_rng(seed), np.arange(blocks)[:, None]
    base = 2 * GIB + 20 * MIB * random.standard_normal((blocks, 2))
    if shape == "caches that fill":
        base = base + 700 * MIB * (1 - np.exp(-place / 40))
    if shape == "saw teeth":
        base = base + 12 * MIB * (place % 25)
    if shape == "one step up":
        base = base + 900 * MIB * (place > 150)
    if shape == "waves":
        base = base + 300 * MIB * np.sin(place / 30 + seed)
    return base


@pytest.mark.parametrize("shape", ["flat", "caches that fill", "saw teeth", "one step up", "waves"])
def test_clean_runs_raise_nothing(shape):
    for seed in range(20):
        assert grown(clean(seed, shape)) == [], seed


def test_a_leak_is_named_with_its_slope_and_the_time_left():
    series = clean(1, "saw teeth")
    series[:, 1] += 4 * MIB * np.arange(len(series))
    found = grown(series, room=8 * GIB)
    assert [growth.rank for growth in found] == [1], "once"
    assert found[0].bytes_per_step == pytest.approx(4 * MIB / 8, rel=0.8), "the teeth lean on it"
    left_blocks = (8 * GIB - found[0].resident) / (8 * found[0].bytes_per_step)
    assert found[0].seconds_left == pytest.approx(2.0 * left_blocks, rel=0.01)
    assert found[0].step < 8 * 200
    assert "used up in" in found[0].words("node-3")


def test_a_slow_leak_of_a_long_run_is_found_although_points_are_thinned():
    series = clean(2, "flat", blocks=4000)
    series[:, 0] += 0.25 * MIB * np.arange(4000)
    assert [growth.rank for growth in grown(series, room=8 * GIB)] == [0]


def saves(seconds: list[float]) -> list[dict]:
    return [{"kind": "save", "step": 10 * (place + 1), "flush_ns": round(s * 1e9)} for place, s in enumerate(seconds)]


def test_saves_that_take_much_longer_twice_in_a_row_are_told_once():
    found = slow_saves(saves([10, 12, 9, 11, 10, 44, 12, 50, 60, 70]))
    assert [slow.step for slow in found] == [90]
    assert found[0].usual_seconds == pytest.approx(11, abs=1)
    assert slow_saves(saves([1, 30, 2, 1, 25, 3, 1, 1, 2])) == []
    assert slow_saves(saves([0.1] * 10 + [0.9] * 5)) == [], "below a few seconds nobody minds"


def test_data_waits_that_grow_are_told_with_the_rank():
    random, rules, found = np.random.default_rng(0), DataWaits(2), []
    for number in range(60):
        share = [float(x) for x in 0.02 * random.random(2)]
        if number in (10, 20, 21) or number >= 40:
            share[1] = 0.3
        found += rules.take(block(number, [0, 0], share))
    assert [(slow.rank, slow.step) for slow in found] == [(1, 8 * 42 + 8)]
    assert "rank 1 waits for its data: 30% of its time" in found[0].words()

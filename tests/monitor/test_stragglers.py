"""Slow ranks are named, and nobody else is: over simulated noise of many kinds."""

from __future__ import annotations

import numpy as np
import pytest

from headway.monitor.blocks import Blocks, peers_of
from headway.monitor.stragglers import Stragglers, delay_blocks

STEPS, STEP_NS = 1280, 200_000_000


def times(seed: int, world: int, steps: int = STEPS, noise: str = "normal", sigma: float = 0.02) -> np.ndarray:
    """Work of [step, rank] in ns: what all share (ramps, lengths of documents) times what each has of its own."""
    random = np.random.default_rng(seed)
    shared = 1 + 0.2 * np.abs(random.standard_normal((steps, 1))) + np.linspace(0, 1, steps)[:, None]
    own = sigma * random.standard_normal((steps, world))
    if noise == "heavy":  # one step in twenty takes up to many times as long
        own += (random.random((steps, world)) < 0.05) * random.pareto(1.5, (steps, world))
    if noise == "wandering":  # neighbours on the machine come and go for a while
        drive = sigma * random.standard_normal((steps, world))
        for step in range(1, steps):
            drive[step] += 0.95 * drive[step - 1]
        own += drive
    if noise == "bursts":  # now and then a rank loses half a second of its steps
        for start in random.integers(0, steps, 20):
            own[start : start + 3, random.integers(world)] += 1.0
    return STEP_NS * shared * np.exp(own)


def rows_of(work: np.ndarray) -> dict[int, list[dict]]:
    longest = work.max(axis=1)
    return {
        rank: [
            {
                "step": step + 1,
                "data_ns": 1000,
                "work_ns": int(work[step, rank]),
                "wait_ns": int(longest[step] - work[step, rank]),
                "end_ns": 0,
                "rss": 10**9,
                "peak": 10**9,
                "first": False,
            }
            for step in range(len(work))
        ]
        for rank in range(work.shape[1])
    }


def named(work: np.ndarray, peers: list[int] | None = None) -> list:
    world = work.shape[1]
    rules = Stragglers(world)
    return [found for block in Blocks(peers or [0] * world).take(rows_of(work)) for found in rules.take(block)]


@pytest.mark.parametrize("noise", ["normal", "heavy", "wandering", "bursts"])
@pytest.mark.parametrize("world", [2, 5])
def test_twenty_clean_runs_name_nobody(noise, world):
    for seed in range(20):
        assert named(times(seed, world, noise=noise)) == [], seed


@pytest.mark.parametrize("noise", ["normal", "heavy", "bursts"])
@pytest.mark.parametrize("world", [2, 16])
def test_a_rank_six_percent_slow_is_named_which_no_ratio_sees(noise, world):
    for seed in range(3):
        work = times(seed, world, noise=noise)
        work[600:, 1] *= 1.06
        found = named(work)
        assert {straggler.rank for straggler in found} == {1}, seed
        assert found[0].rule == "change"
        assert 0.035 < found[0].slow < 0.12
        assert found[0].step > 600
        assert found[0].since_step > 400


def test_slow_from_the_first_step_on_is_named_too():
    work = times(3, 4)
    work[:, 2] *= 1.06
    assert {straggler.rank for straggler in named(work)} == {2}


@pytest.mark.parametrize("sigma", [0.01, 0.03, 0.08])
def test_the_stated_delay_is_kept(sigma):
    """sigma is that of blocks: medians of 8 steps over medians of others."""
    late = []
    for seed in range(5):
        work = times(seed, 4, sigma=sigma)
        work[640:, 3] *= 1.06
        found = [straggler for straggler in named(work) if straggler.rank == 3]
        assert found, "never named"
        late.append((found[0].step - 640) / 8 / delay_blocks(0.06, found[0].sigma, 4))
    assert np.median(late) < 1.5, late


def test_twice_as_slow_is_named_within_three_blocks():
    work = times(1, 4, noise="heavy")
    work[400:, 0] *= 2.2
    found = named(work)
    assert [(straggler.rank, straggler.rule) for straggler in found] == [(0, "ratio")]
    assert found[0].step - 400 <= 4 * 8
    assert "rank 0 on node-7 is slow: it works 2." in found[0].words("node-7")


def test_it_is_named_once_and_again_after_it_was_well():
    work = times(2, 4)
    work[200:600, 1] *= 1.3
    work[1000:1400, 1] *= 1.3
    found = named(work)
    assert [straggler.rank for straggler in found] == [1, 1]
    assert found[0].step < 300 < 1000 < found[1].step < 1100


def test_stages_of_a_pipeline_are_no_peers():
    """The last one has the head: more work by design."""
    work = times(5, 4)
    work[:, 2:] *= 1.4
    assert named(work, peers_of({"world": 4, "axes": {"pp": 2, "dp_shard": 2}})) == []
    assert {straggler.rank for straggler in named(work)} == {2, 3}


def test_alone_there_is_nobody_to_be_slower_than():
    assert named(times(1, 1)) == []


def test_steps_that_some_rank_never_told_do_not_count():
    rows = rows_of(times(1, 2, steps=100))
    rows[1] = rows[1][::2]
    blocks = Blocks([0, 0]).take(rows)
    assert [block.steps for block in blocks] == [8] * 6
    assert [block.last - block.first for block in blocks] == [14] * 6


def test_first_steps_of_stages_are_left_out():
    rows = rows_of(times(1, 2, steps=20))
    for rank in rows:
        rows[rank][0]["first"] = True
        rows[rank][0]["work_ns"] *= 50 * (rank + 1)
    assert Blocks([0, 0]).take(rows)[0].first == 2

"""The spike detector: what it flags, what it never learns, and that it goes on from a checkpoint as if nothing had happened."""

from __future__ import annotations

import dataclasses
import json
import math
import random

import pytest

from headway.base.errors import RunError
from headway.monitor.spikes import LEAST_STEPS, WINDOW_STEPS, SpikeDetector
from headway.recipe.spike_rules import SpikeRules

THRESHOLD = SpikeRules().threshold


def descent(steps: int, seed: int = 1, noise: float = 0.03) -> list[tuple[float, float]]:
    """Loss and gradient norm of a run that learns: a steep descent, then a slow one."""
    generator = random.Random(seed)
    wobble = lambda: math.exp(generator.gauss(0, noise))  # noqa: E731
    return [(2 + 6 / (1 + step / 20) * wobble(), (0.5 + 4 / (1 + step / 10)) * wobble() ** 5) for step in range(steps)]


def run_over(detector: SpikeDetector, values, regime="0"):
    """The places that were flagged; learns what a trainer learns."""
    flagged = []
    for place, (loss, norm) in enumerate(values):
        if detector.judge(regime, loss, norm).exceeds(THRESHOLD):
            flagged.append(place)
        else:
            detector.learn(loss, norm)
    return flagged


@pytest.mark.parametrize("seed", range(20))
def test_R54_a_clean_run_is_never_flagged(seed):
    assert run_over(SpikeDetector(), descent(3_000, seed)) == []


@pytest.mark.parametrize("at", [LEAST_STEPS, 150, 900])
@pytest.mark.parametrize(("loss", "norm"), [(1.8, 1.0), (1.0, 30.0)])
def test_R54_a_spike_of_either_is_flagged_early_and_late(at, loss, norm):
    values = descent(1_000)
    values[at] = (values[at][0] * loss, values[at][1] * norm)
    assert run_over(SpikeDetector(), values) == [at]


def test_one_sided_and_silent_until_it_has_seen_enough():
    values = descent(400)
    values[LEAST_STEPS - 1] = (values[0][0] * 5, 100.0)
    values[300] = (values[300][0] / 5, values[300][1] / 50)
    assert run_over(SpikeDetector(), values) == []


def test_L10_a_spike_that_lasts_never_becomes_the_rule():
    values = [(2.0 * math.exp(random.Random(step).gauss(0, 0.01)), 1.0) for step in range(1_000)]
    lasting = range(300, 1_000)
    for step in lasting:
        values[step] = (values[step][0] * 1.5, 1.0)
    assert run_over(SpikeDetector(), values) == list(lasting)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_L9_what_has_no_logarithm_is_neither_judged_nor_learned(bad):
    clean, detector = descent(200), SpikeDetector()
    run_over(detector, clean)
    before = detector.to_json()
    for values in ((bad, 1.0), (2.0, bad)):
        assert not detector.judge("0", *values).exceeds(THRESHOLD)
        detector.learn(*values)
    assert detector.to_json() == before


@pytest.mark.parametrize("at", [1, LEAST_STEPS - 1, LEAST_STEPS, WINDOW_STEPS, WINDOW_STEPS + 1, 299])
def test_L10_the_statistics_survive_a_restart_anywhere(at):
    values = descent(300)
    values[200] = (values[200][0] * 3, 50.0)
    whole, first = SpikeDetector(), SpikeDetector()
    readings = []
    for loss, norm in values:
        readings.append(whole.judge("0", loss, norm))
        if not readings[-1].exceeds(THRESHOLD):
            whole.learn(loss, norm)
    run_over(first, values[:at])
    second = SpikeDetector.restored(json.loads(json.dumps(first.to_json())))
    for (loss, norm), reading in zip(values[at:], readings[at:], strict=True):
        assert second.judge("0", loss, norm) == reading
        if not reading.exceeds(THRESHOLD):
            second.learn(loss, norm)
    assert second.to_json() == whole.to_json()


def test_flagged_steps_are_counted_until_a_sound_one():
    detector = SpikeDetector()
    run_over(detector, descent(100))
    detector.flag()
    detector.flag()
    assert SpikeDetector.restored(detector.to_json()).in_a_row == 2
    detector.learn(2.0, 1.0)
    assert detector.in_a_row == 0
    detector.flag()
    detector.judge("another", 2.0, 1.0)
    assert detector.in_a_row == 0


def test_another_regime_is_another_matter():
    """A stage of other text may begin at another loss: that is no spike, and is judged by itself after a while."""
    detector = SpikeDetector()
    assert run_over(detector, [(2.0, 1.0)] * 200) == []
    assert run_over(detector, [(4.0, 3.0)] * 100 + [(6.0, 3.0)], regime="1") == [100]


def test_an_older_checkpoint_has_none_and_a_strange_one_is_refused():
    assert SpikeDetector.restored(None).to_json() == SpikeDetector().to_json()
    for saved in ([], {"regime": 1}, {"loss": ["nan"]}, {"losses": []}):
        with pytest.raises(RunError, match="spike statistics"):
            SpikeDetector.restored(saved)


def test_the_state_is_small_and_a_reading_is_plain():
    detector = SpikeDetector()
    run_over(detector, descent(1_000))
    assert len(json.dumps(detector.to_json())) < 10_000
    reading = dataclasses.asdict(detector.judge("0", 2.0, 1.0))
    assert json.loads(json.dumps(reading)) == reading

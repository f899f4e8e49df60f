"""Who was wrong: from what ranks noted in two runs of a step, and from a step that is repeated in this process."""

from __future__ import annotations

import pytest
from test_train_step import make_batch, make_spec

from headway.base.errors import SilentCorruption
from headway.checkpoint.digest import state_digest
from headway.rundir.segments import Segment
from headway.train.crew import ALONE
from headway.train.soundness import check
from headway.train.soundness.check import CheckPolicy, Soundness
from headway.train.soundness.culprit import Difference, culprits, difference, first_parameter
from headway.train.soundness.finding import REPEAT, who, who_words
from headway.train.soundness.repeat import AskedOnce
from headway.train.soundness.trail import Search, locate
from headway.train.step import train_step
from headway.train.trainee import build_trainee

HOSTS = ["a", "a", "b", "b"]
QUERY = "layers.0.attention.q.weight"


def notes(**values):
    """``w_0`` is meeting 0 of group w; None: nothing was brought."""
    return [(f"@w/{name[2:]}" if name.startswith("w_") else name, value and (value,)) for name, value in values.items()]


def test_the_first_to_bring_something_else_is_named():
    usual = notes(before=1, w_0=2, w_1=3, gradients=4)
    source = difference(usual, notes(before=1, w_0=2, w_1=9, gradients=4))
    reached = difference(usual, notes(before=1, w_0=2, w_1=3, gradients=9))
    assert (source.first, source.met, source.brought) == ("@w/1", ("@w/0",), ("@w/1",))
    assert culprits({0: reached, 1: source, 2: Difference()}) == (1,)


def test_who_only_receives_is_explained_by_the_sender():
    usual, sender = notes(w_0=None, w_1=3, state=5), notes(w_0=7, w_1=None, state=5)
    reached, source = difference(usual, notes(w_0=None, w_1=4, state=6)), difference(sender, notes(w_0=8, w_1=None, state=5))
    assert culprits({0: reached, 1: source}) == (1,)


def test_a_rank_that_is_wrong_in_its_own_state_alone_is_named():
    assert culprits({0: Difference(), 1: difference(notes(w_0=2, state=3), notes(w_0=2, state=4))}) == (1,)


def test_two_that_bring_something_else_to_one_meeting_are_both_under_suspicion():
    both = difference(notes(w_0=2), notes(w_0=3))
    assert culprits({0: both, 1: both}) == (0, 1)


def test_nobody_is_accused_where_meetings_are_not_known():
    """A first run that exchanged more than the second, or an operation that nobody has a table for."""
    other = difference(notes(w_0=2, state=3), notes(state=4))
    assert other.first == "state"
    assert culprits({0: other, 1: other}) == (0, 1)
    assert difference(notes(w_0=2, state=3), notes(state=3)) == Difference(), "what is its own is the same"


@pytest.mark.parametrize(
    ("names", "parameter"),
    [
        (("gradients/layers.0.norm.weight", "state/m/x"), "layers.0.norm.weight"),
        (("losses/", "state/v/embed.weight"), "embed.weight"),
        (("losses/",), ""),
    ],
)
def test_the_first_parameter_is_named(names, parameter):
    assert first_parameter(names) == parameter


def test_a_host_is_named_where_all_suspects_share_it():
    assert who([2], HOSTS) == {"rank": 2, "ranks": [2], "host": "b", "hosts": ["b"]}
    assert who([2, 3], HOSTS) == {"rank": None, "ranks": [2, 3], "host": "b", "hosts": ["b"]}
    assert who([0, 2], HOSTS) == {"rank": None, "ranks": [0, 2], "host": None, "hosts": ["a", "b"]}
    assert who_words([0, 2], HOSTS) == "one of ranks 0 (a), 2 (b); which of them is not known"


def search(**changes):
    return Search(
        **{"segment": 1, "last": 20, "agreed": 10, "suspects": (0, 1), "parameter": "w"} | changes, losses={}, checksums={}
    )


def test_P7_the_copy_whose_own_loss_was_the_first_to_differ_was_wrong():
    found = locate(search(), [15, 14], [False, False])
    assert (found.rank, found.first_step) == (1, 13), "its state differed after the step before"


def test_P7_a_change_that_no_loss_shows_is_told_by_the_state_that_is_not_repeated():
    found = locate(search(), [None, None], [True, False])
    assert (found.rank, found.first_step) == (1, None)


def test_P7_without_evidence_nobody_is_named():
    assert locate(search(), [14, 14], [False, False]).rank is None
    assert locate(search(), [11, None], [False, False]).first_step == 11, "after step 10 copies were equal"


class Log:
    """What the loop's log would have."""

    def __init__(self):
        self.rows, self.marks = [], []

    def mark(self, category):
        self.marks.append(category)

    def write(self, kind, **fields):
        self.rows.append((kind, fields))


def sound(every=1):
    trainee = build_trainee(make_spec())
    checks = Soundness(CheckPolicy(compare_every=1, repeat_every=every), trainee, ALONE, Log())
    checks.begin(None, Segment(1, None, 0, None, "test", "test", 1, {}), 0, {})
    return checks, trainee


def corrupt(monkeypatch, *flipped):
    """A bit of a weight flips at the end of these runs of a step, counted from 0."""
    honest, runs = check.noted_step, []

    def noted(trainee, batch, rate, wish=lambda: False):
        runs.append(len(runs))

        def flips() -> bool:
            if runs[-1] in flipped:
                trainee.memory_of_state(f"param/{QUERY}")[5] ^= 4
            return wish()

        return honest(trainee, batch, rate, flips)

    monkeypatch.setattr(check, "noted_step", noted)


@pytest.mark.parametrize(
    ("flipped", "verdict"),
    [
        ((0,), "a third run agrees with the repetition: the step was wrong"),
        ((1,), "a third run agrees with the step: the repetition was wrong"),
        ((1, 2), "agrees with"),
    ],
)
def test_a_third_run_tells_which_of_two_was_wrong(monkeypatch, flipped, verdict):
    checks, _ = sound()
    corrupt(monkeypatch, *flipped)
    with pytest.raises(SilentCorruption, match=verdict) as error:
        checks.step(make_batch((4, 4)), 1e-3, lambda: False)
    facts = error.value.facts
    assert (facts["by"], facts["step"], facts["agreed"], facts["rank"]) == (REPEAT, 1, 0, 0)
    assert (facts["parameter"], facts["tensors"]) == (QUERY, [f"state/param/{QUERY}"])


def test_a_repeated_step_leaves_what_an_ordinary_one_leaves():
    checks, trainee = sound()
    other, batch, asked = build_trainee(make_spec()), make_batch((4, 4)), []
    result = checks.step(batch, 1e-3, lambda: bool(asked.append(True)))
    assert vars(result) == vars(train_step(other, batch, 1e-3))
    assert state_digest(trainee.state()) == state_digest(other.state())
    assert trainee.updates == 1
    assert asked == [True], "who wishes to stop is asked once"
    assert checks.stated() == {REPEAT: 1}


def test_all_runs_of_a_step_send_what_was_wished_first():
    """Else a stop that is asked for meanwhile would look like another result."""
    answers = iter([False, True, True])
    asked = AskedOnce(lambda: next(answers))
    assert [asked(), asked(), asked()] == [False] * 3


def test_only_steps_of_the_cadence_are_repeated():
    checks, _ = sound(every=3)
    checks.step(make_batch((4, 4)), 1e-3, lambda: False)
    checks.after(1, 0.0)
    assert (checks._log.marks, checks._log.rows, checks.stated()) == ([], [], {REPEAT: 0})

"""What was saved between the last check that found all sound and a finding is chosen by nobody; what is needed instead stays."""

from __future__ import annotations

import pytest
from store_cases import add_segment, chain_of, make_run, record_save, save

from headway.base.errors import RunError
from headway.base.files import write_json
from headway.store.admissible import choose
from headway.store.mirror.choice import choose_with_mirror
from headway.store.names import CheckpointName
from headway.store.retention import Retention, apply_retention, plan_retention
from headway.store.suspects import finding_of, suspicion


@pytest.fixture
def run(tmp_path):
    run = make_run(tmp_path / "run")
    for step in (10, 20, 30):
        record_save(run, 1, step, save(run, 1, step))
    return run


def found(run, agreed, segment=1, step=35):
    write_json(run.segment(segment) / "error.json", {"corruption": {"by": "repeat", "step": step, "agreed": agreed}})


def test_what_was_saved_since_the_last_sound_check_is_passed_over(run):
    found(run, 15)
    choice = choose(run, chain_of(run))
    assert choice.checkpoint == "g0001-s00000010"
    assert [entry["checkpoint"] for entry in choice.rejected] == ["g0001-s00000030", "g0001-s00000020"]
    assert "found silent corruption at step 35" in choice.rejected[0]["reason"]
    with pytest.raises(RunError, match="suspect: segment 1 found silent corruption"):
        choose(run, chain_of(run), explicit="g0001-s00000030")


def test_a_checkpoint_of_a_sound_step_stands(run):
    found(run, 30)
    assert choose(run, chain_of(run)).step == 30


def test_later_segments_are_not_suspect(run):
    found(run, 10)
    add_segment(run, 2, parent=1, restored=10, checkpoint="g0001-s00000010")
    save(run, 2, 20)
    assert choose(run, chain_of(run)).checkpoint == "g0002-s00000020"


def test_where_all_is_suspect_initial_weights_are_sound(run):
    found(run, 0)
    choice = choose(run, chain_of(run))
    assert (choice.checkpoint, choice.step, len(choice.rejected)) == (None, 0, 3)


def test_what_is_lost_for_another_reason_is_no_reason_to_begin_anew(run):
    """Step 10 would be sound, and is gone."""
    found(run, 15)
    (run.checkpoints / "g0001-s00000010" / "MANIFEST.json").unlink()
    with pytest.raises(RunError, match="no checkpoint of this run can be used"):
        choose(run, chain_of(run))


@pytest.mark.parametrize("error", [None, [], {}, {"corruption": 3}, {"corruption": {"step": 3}}])
def test_other_errors_are_no_findings(run, error):
    if error is not None:
        write_json(run.segment(1) / "error.json", error)
    assert finding_of(run, 1) is None
    assert suspicion(run)(CheckpointName(1, 30)) == ""


class Elsewhere:
    """A mirror that has everything, and may not be asked for what is suspect."""

    url = "file:///elsewhere"

    def list(self):
        return ["g0001-s00000030"]

    def has(self, name):
        raise AssertionError(name)


def test_a_mirror_is_not_asked_for_what_is_suspect(run):
    found(run, 20)
    assert choose_with_mirror(run, chain_of(run), Elsewhere()).checkpoint == "g0001-s00000020"
    found(run, 0)
    assert choose_with_mirror(run, chain_of(run), Elsewhere()).checkpoint is None


def test_retention_keeps_the_newest_from_before_the_last_sound_step(tmp_path):
    run = make_run(tmp_path / "run")
    for step, checked in ((10, 0), (20, 12), (30, 25), (40, 25)):
        record_save(run, 1, step, save(run, 1, step, says={"checked": {"repeat": checked}}))
    plan = plan_retention(run, chain_of(run), Retention(keep_last=1))
    assert [going.name for going in plan.going] == ["g0001-s00000010", "g0001-s00000030"]
    kept = {kept.name: kept.reasons for kept in plan.kept}
    assert "before step 25, which was repeated and found sound" in kept["g0001-s00000020"][0]
    apply_retention(run, chain_of(run), Retention(keep_last=1))
    found(run, 25)
    assert choose(run, chain_of(run)).step == 20

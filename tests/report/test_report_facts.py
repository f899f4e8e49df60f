"""What is read from a run directory, and what follows from it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from synthetic_run import PEAK_BYTES, Story, make_spec, tell, tell_attempts

from headway.data.stream import Skip, Stream
from headway.formulas.parameters import count_parameters
from headway.recipe.schedules import Schedule
from headway.report.facts import RunFacts, gather
from headway.report.material import Material
from headway.report.planned_values import plan_quantities
from headway.report.realised import source_use
from headway.report.replay import Match, interruptions, replay
from headway.report.sections.planned import lines
from headway.report.sections.time import chain_ns
from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import read_chain_rows, read_steps
from headway.rundir.segments import current_chain, read_segments, write_segment

SHORT = Story(kill_step=13, restored_step=8, steps=24, save_every=8)


def test_E5_rolled_back_rows_are_kept_apart(facts: RunFacts) -> None:
    assert facts.kept.step.tolist() == list(range(1, 121))
    assert facts.discarded.step.tolist() == list(range(41, 58))
    assert set(facts.discarded.segment.tolist()) == {1}
    assert facts.kept.at(41).segment.tolist() == [2]


def test_the_report_keeps_what_the_run_directory_keeps(tmp_path: Path) -> None:
    """One rule for what counts: that of ``rundir.metrics``, for rows of every kind."""
    run = tell_attempts(tmp_path / "run", [5, 12, 9, 24])
    kept = [(row["segment"], row["step"]) for row in _chain_rows(run) if row["kind"] == "step"]
    facts = gather(run)
    assert list(zip(facts.kept.segment.tolist(), facts.kept.step.tolist(), strict=True)) == kept
    assert [step for _, step in kept] == list(range(1, 25))


def _chain_rows(run: RunDirectory) -> list[dict]:
    return read_chain_rows(run, current_chain(read_segments(run))).kept


def test_columns_equal_the_rows(facts: RunFacts) -> None:
    rows = [row for number in (1, 2) for row in read_steps(_run(facts), number) if row["kind"] == "step"]
    assert facts.steps.loss.tolist() == [row["loss"] for row in rows]
    assert facts.steps.total_ns.tolist() == [sum(row["split"].values()) for row in rows]
    assert facts.steps.tokens.tolist() == [row["tokens"] for row in rows]
    assert facts.steps.digest.tolist() == [row["digest"] for row in rows]


def _run(facts: RunFacts) -> RunDirectory:
    return RunDirectory.open(facts.root)


def test_replay_is_proven_by_digests(facts: RunFacts) -> None:
    proof = replay(facts)
    assert [step.step for step in proof.steps] == list(range(41, 58))
    assert proof.identical is True
    assert proof.proven
    assert proof.count(Match.DIGEST_EQUAL) == 17


def test_replay_that_differs_is_found(tmp_path: Path) -> None:
    proof = replay(gather(tell(tmp_path / "run", dataclasses.replace(SHORT, differ_at=11))))
    assert proof.identical is False
    assert not proof.proven
    assert [step.step for step in proof.steps if not step.match.equal] == [11, 12, 13]


def test_replay_without_digests_is_weaker(tmp_path: Path) -> None:
    proof = replay(gather(tell(tmp_path / "run", dataclasses.replace(SHORT, digest_every=1000))))
    assert proof.identical is True
    assert not proof.proven
    assert proof.count(Match.NUMBERS_EQUAL) == 5
    changed = replay(gather(tell(tmp_path / "other", dataclasses.replace(SHORT, digest_every=1000, differ_at=12))))
    assert [step.step for step in changed.steps if step.match is Match.NUMBERS_DIFFER] == [12, 13]


def test_replay_under_other_skips_is_not_compared(tmp_path: Path) -> None:
    run = tell(tmp_path / "run", SHORT)
    path = run.segment(2) / "segment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"skips": [{"stage": 0, "first": 130, "count": 16}]}))
    proof = replay(gather(run))
    assert proof.steps == ()
    assert proof.identical is None
    assert proof.not_comparable == 5


def test_cost_of_the_interruption(facts: RunFacts) -> None:
    (item,) = interruptions(facts)
    schedule = Schedule(facts.spec)  # type: ignore[arg-type]
    assert (item.last_step, item.restored_step, item.lost_steps) == (57, 40, 17)
    assert item.lost_tokens == schedule.tokens_before(57) - schedule.tokens_before(40)
    assert item.lost_work_ns == int(facts.discarded.total_ns.sum())
    once, again = facts.steps.at(57).boot_ns.tolist()
    assert item.behind_ns == again - once
    assert item.word == "killed"


def test_interruptions_follow_the_order_of_running_not_the_parents(tmp_path: Path) -> None:
    """Killed before the first commit, killed with one, crashed without a new one, ended: each lost step is lost once."""
    facts = gather(tell_attempts(tmp_path / "run", [5, 3, 18, 17, 24]))
    assert [a.segment.parent for a in facts.segments] == [None, None, None, 3, 3]
    found = [
        (item.before.segment.id, item.after.segment.id, item.last_step, item.restored_step, item.lost_steps)
        for item in interruptions(facts)
    ]
    assert found == [(1, 2, 5, 0, 5), (2, 3, 3, 0, 3), (3, 4, 18, 16, 2), (4, 5, 17, 16, 1)]
    assert sum(item.lost_steps for item in interruptions(facts)) == len(facts.discarded) == 11
    assert [item.lost_tokens for item in interruptions(facts)] == [n * 4096 for n in (5, 3, 2, 1)]
    assert sum(item.lost_work_ns for item in interruptions(facts)) == int(facts.discarded.total_ns.sum())


def test_steps_of_an_older_segment_are_lost_with_its_checkpoint(tmp_path: Path) -> None:
    """Segment 2 went on from 16; that checkpoint is damaged, so segment 3 goes back to 8, behind steps of segment 1."""
    run = tell_attempts(tmp_path / "run", [17, 20])
    teller_end = gather(run)
    assert [item.lost_steps for item in interruptions(teller_end)] == [1]
    segment = dataclasses.replace(
        teller_end.segments[1].segment, id=3, parent=1, restored_step=8, checkpoint="g0001-s00000008", reason="restart"
    )
    write_segment(run, segment)
    facts = gather(run)
    assert [item.lost_steps for item in interruptions(facts)] == [1, 12], "9-16 of segment 1 and 17-20 of segment 2"
    assert interruptions(facts)[1].lost_tokens == 12 * 4096


def test_behind_is_measured_to_whichever_segment_came_back(tmp_path: Path) -> None:
    facts = gather(tell_attempts(tmp_path / "run", [5, 3, 24]))
    first, second = interruptions(facts)
    rows = facts.steps.at(5)
    assert rows.segment.tolist() == [1, 3]
    assert first.behind_ns == int(rows.boot_ns[1] - rows.boot_ns[0])
    assert second.behind_ns is not None


@pytest.mark.parametrize(
    ("exits", "word"),
    [
        ({}, "killed"),
        ({"signal": 11}, "failed"),
        ({"signal": 15, "forced": "stop"}, "stopped"),
        ({"forced": "hang"}, "ended by its supervisor"),
        ({"lost_node": "n1"}, "cut off"),
        ({"signal": None, "code": 4}, "failed"),
        ({"signal": None, "code": None, "reason": "its owner had died; its trainer was killed"}, "cut off"),
    ],
)
def test_the_word_for_an_end(tmp_path: Path, exits: dict, word: str) -> None:
    """After a take-over the exit status is not known: without its own last word a trainer was cut off, not stopped."""
    facts = gather(tell_attempts(tmp_path / "run", [5, 24], exits=exits))
    assert [item.word for item in interruptions(facts)] == [word]
    assert [attempt.killed for attempt in facts.segments] == [True, False]


def test_an_orderly_stop_is_no_kill(tmp_path: Path) -> None:
    run = tell(tmp_path / "run", dataclasses.replace(SHORT, kill_step=None, end_step=10))
    first = gather(run).segments[0].segment
    write_segment(
        run, dataclasses.replace(first, id=2, parent=1, restored_step=10, checkpoint="g0001-s00000010", reason="resume")
    )
    (item,) = interruptions(gather(run))
    assert (item.word, item.lost_steps, item.before.killed) == ("stopped", 0, False)


def test_G1_the_two_ends_of_the_chain_agree_with_the_sum(facts: RunFacts) -> None:
    assert facts.ledger is not None
    assert sum(facts.ledger.categories.values()) == facts.ledger.total_ns == chain_ns(facts)


def test_parameters_are_counted_in_the_checkpoint(facts: RunFacts) -> None:
    assert facts.spec is not None
    assert facts.stored_parameters == count_parameters(facts.spec.model).total


@pytest.mark.parametrize("skips", [(), ({"stage": 0, "first": 100, "count": 37}, {"stage": 0, "first": 300, "count": 5})])
def test_source_use_equals_the_stream_counted_one_by_one(skips: tuple[dict, ...]) -> None:
    spec = make_spec()
    stream, schedule = Stream(spec, tuple(Skip(**skip) for skip in skips)), Schedule(spec)
    for step in (0, 1, 7, 25, 91, 120):
        place = schedule.place(step)
        counted = np.zeros((2, 2), int)
        for stage in range(2):
            done = spec.stages[stage].sequences if stage < place.stage else place.first_sequence if stage == place.stage else 0
            counted[stage] = np.bincount(stream.locate(stage, np.arange(done)).source, minlength=2)
        assert [use.by_stage for use in source_use(stream, step)] == [tuple(column) for column in counted.T.tolist()]


def test_plan_lines_compare_the_stored_plan(material: Material) -> None:
    stored = plan_quantities(material.facts.plan)
    by_label = {line.entry.label: line for line in lines(material)}
    assert by_label["steps"].actual == 120 == stored["steps"]["value"]
    tokens = by_label["tokens per second"]
    kept = material.facts.kept
    assert tokens.actual == pytest.approx(120 * 4096 / (kept.total_ns.sum() / 1e9))
    assert tokens.ratio == pytest.approx(tokens.actual * (120 * 4096 / 15_900 + 120 * 0.002) / (120 * 4096))  # type: ignore[operator]
    assert tokens.inside is True
    assert by_label["time of one save, median"].actual == 0.08, "commit and read-back"
    assert by_label["time of one save, median"].inside is True
    assert by_label["memory, peak"].actual == PEAK_BYTES
    assert by_label["memory, peak"].inside is not None
    ledger = material.facts.ledger
    assert ledger is not None
    assert by_label["training"].actual == (ledger.categories["productive"] + ledger.categories["data_stall"]) / 1e9


@pytest.mark.parametrize(
    "label",
    [
        "tokens per second",
        "time per step, mean",
        "time of one evaluation, median",
        "time of one save, median",
        "training",
        "saves",
        "all evaluations, without samples",
        "all predicted work",
    ],
)
def test_a_calibrated_plan_predicts_each_time_with_a_band(material: Material, label: str) -> None:
    line = next(line for line in lines(material) if line.entry.label == label)
    assert line.planned is not None
    assert line.band is not None
    low, high = line.band
    assert low <= line.planned["value"] <= high
    assert line.inside is True, (line.actual, line.band)


def test_samples_are_no_predicted_evaluation(material: Material) -> None:
    facts = material.facts
    line = next(line for line in lines(material) if line.entry.label == "all evaluations, without samples")
    assert line.actual == pytest.approx(sum(evaluation.ns for evaluation in facts.evaluations) / 1e9)
    assert sum(sample.ns for sample in facts.samples) > 0


def test_plan_adds_the_time_of_digests() -> None:
    from headway.report.planned_values import COMPARED, planned_for

    entry = next(entry for entry in COMPARED if entry.label == "training")
    plan = {
        "sections": [
            {"quantities": [{"name": "training_seconds", "value": 10.0, "unit": "seconds", "low": 8.0, "high": 13.0}]},
            {"quantities": [{"name": "digesting_seconds", "value": 2.0, "unit": "seconds", "low": None, "high": 4.0}]},
            {"quantities": [{"name": name, "value": 100, "unit": name} for name in ("steps", "tokens")]},
        ]
    }
    found = planned_for(entry, plan_quantities(plan))
    assert found is not None
    assert (found["value"], found["low"], found["high"]) == (12.0, 10.0, 17.0)
    for label, wanted in (("time per step, mean", (0.12, 0.10, 0.17)), ("tokens per second", (100 / 12, 100 / 17, 10.0))):
        found = planned_for(next(entry for entry in COMPARED if entry.label == label), plan_quantities(plan))
        assert found is not None
        assert (found["value"], found["low"], found["high"]) == wanted


def test_unfinished_run_is_not_compared_as_a_whole(tmp_path: Path) -> None:
    material = Material.of(
        gather(tell(tmp_path / "run", Story(kill_step=None, end_step=10, finish=False, steps=24, save_every=8)))
    )
    by_label = {line.entry.label: line for line in lines(material)}
    assert material.facts.state == "unfinished"
    assert by_label["tokens"].ratio is None
    assert by_label["tokens per second"].ratio is not None


def test_torn_line_is_left_out_and_said(tmp_path: Path) -> None:
    run = tell(tmp_path / "run", SHORT)
    path = run.steps_file(2)
    data = path.read_bytes().split(b"\n")
    data[10] = data[10][:-7] + b"#######"
    path.write_bytes(b"\n".join(data))
    facts = gather(run)
    assert any("1 torn or altered line" in line for line in facts.missing)
    assert len(facts.kept) == 23


def test_non_finite_loss_is_read(tmp_path: Path) -> None:
    run = tell(tmp_path / "run", SHORT)
    from headway.base.records import encode_record, read_records

    path = run.steps_file(2)
    records = read_records(path).records
    records[3]["loss"] = "nan"
    path.write_bytes(b"".join(encode_record(record) for record in records))
    assert np.isnan(gather(run).kept.loss).sum() == 1

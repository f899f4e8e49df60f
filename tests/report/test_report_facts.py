"""What is read from a run directory, and what follows from it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from synthetic_run import Story, make_spec, tell

from headway.data.stream import Skip, Stream
from headway.formulas.parameters import count_parameters
from headway.recipe.schedules import Schedule
from headway.report.attempts import _kept_until
from headway.report.facts import RunFacts, gather
from headway.report.material import Material
from headway.report.planned_values import plan_quantities
from headway.report.realised import source_use
from headway.report.replay import Match, interruptions, replay
from headway.report.sections.planned import lines
from headway.report.sections.time import chain_ns
from headway.rundir.metrics import read_steps
from headway.rundir.segments import Segment

SHORT = Story(kill_step=13, restored_step=8, steps=24, save_every=8)


def test_E5_rolled_back_rows_are_kept_apart(facts: RunFacts) -> None:
    assert facts.kept.step.tolist() == list(range(1, 121))
    assert facts.discarded.step.tolist() == list(range(41, 58))
    assert set(facts.discarded.segment.tolist()) == {1}
    assert facts.kept.at(41).segment.tolist() == [2]


def test_kept_until_looks_past_the_child() -> None:
    """Segment 3 restored behind the point where segment 2 began: what segment 1 did after that is gone too."""

    def segment(number: int, parent: int | None, restored: int) -> Segment:
        return Segment(number, parent, restored, None, "", "automatic", 1, {})

    chain = [segment(1, None, 0), segment(2, 1, 40), segment(3, 2, 20), segment(4, 3, 30)]
    assert _kept_until(chain) == {1: 20, 2: 20, 3: 30, 4: None}


def test_columns_equal_the_rows(facts: RunFacts) -> None:
    rows = [row for number in (1, 2) for row in read_steps(_run(facts), number) if row["kind"] == "step"]
    assert facts.steps.loss.tolist() == [row["loss"] for row in rows]
    assert facts.steps.total_ns.tolist() == [sum(row["split"].values()) for row in rows]
    assert facts.steps.tokens.tolist() == [row["tokens"] for row in rows]
    assert facts.steps.digest.tolist() == [row["digest"] for row in rows]


def _run(facts: RunFacts):  # type: ignore[no-untyped-def]
    from headway.rundir.layout import RunDirectory

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
        assert [use.by_stage for use in source_use(spec, step, skips)] == [tuple(column) for column in counted.T.tolist()]


def test_plan_lines_compare_the_stored_plan(material: Material) -> None:
    stored = plan_quantities(material.facts.plan)
    by_label = {line.entry.label: line for line in lines(material)}
    assert by_label["steps"].actual == 120 == stored["steps"]["value"]
    tokens = by_label["tokens per second"]
    kept = material.facts.kept
    assert tokens.actual == pytest.approx(120 * 4096 / (kept.total_ns.sum() / 1e9))
    assert tokens.ratio == pytest.approx(tokens.actual / 15_900)  # type: ignore[operator]
    assert tokens.inside is True
    assert by_label["time of one save, median"].inside is False
    ledger = material.facts.ledger
    assert ledger is not None
    assert by_label["training"].actual == (ledger.categories["productive"] + ledger.categories["data_stall"]) / 1e9
    assert by_label["memory, peak"].actual is None


def test_plan_adds_the_time_of_digests() -> None:
    from headway.report.planned_values import COMPARED, planned_for

    entry = next(entry for entry in COMPARED if entry.label == "training")
    plan = {
        "sections": [
            {"quantities": [{"name": "training_seconds", "value": 10.0, "unit": "seconds", "low": 8.0, "high": 13.0}]},
            {"quantities": [{"name": "digesting_seconds", "value": 2.0, "unit": "seconds", "low": None, "high": 4.0}]},
        ]
    }
    found = planned_for(entry, plan_quantities(plan))
    assert found is not None
    assert (found["value"], found["low"], found["high"]) == (12.0, 10.0, 17.0)


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

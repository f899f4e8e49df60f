"""Damaged training tokens: a run stops and names them, or goes on without them, on record, and a replay gives the same."""

from __future__ import annotations

import numpy as np
import pytest
from conftest_e2e import Bench, trace

from headway.cli.main import run_guarded
from headway.data.build import build_data
from headway.data.manifest import DataManifest
from headway.data.stream import Stream
from headway.recipe.load import load_recipe
from headway.recipe.schedules import Schedule
from headway.rundir.events import read_events
from headway.rundir.metrics import read_chain_rows
from headway.rundir.segments import current_chain, read_segments
from headway.supervise import supervisor

pytestmark = pytest.mark.e2e

QUARANTINE = ("interventions.damaged_data=quarantine",)
EARLIEST = 9
"""What is damaged is first read for this update or a later one: checkpoints are behind it."""


@pytest.fixture(scope="module")
def damaged(bench, tmp_path_factory) -> tuple[Bench, dict]:
    """Shards of one small block each; one byte flipped in a block of ``words`` that no early step reads."""
    root = tmp_path_factory.mktemp("damaged")
    (root / "small.toml").write_text(bench.recipe_text)
    build_data(load_recipe(root / "small.toml", []).recipe, root / "data", shard_bytes=256)
    made = Bench(root, root / "data", bench.recipe_text)
    spec, manifest = made.spec(), DataManifest.load(root / "data")
    number = next(at for at, source in enumerate(spec.sources) if source.name == "words")
    early = [token for step in range(EARLIEST - 1) for token in read_by(spec, number, step)]
    later = [token for step in range(EARLIEST - 1, 18) for token in read_by(spec, number, step)]
    fresh = [s for s in manifest.sources[number].shards if not any(touches(s, token) for token in early)]
    shard = next(s for s in fresh if any(touches(s, token) for token in later))
    path = root / "data" / shard.file
    content = bytearray(path.read_bytes())
    content[7] ^= 4
    path.write_bytes(content)
    return made, {"source": "words", "token": shard.first_token, "tokens": shard.tokens, "shard": shard.file, "block": 0}


def read_by(spec, source: int, step: int) -> list[int]:
    """First tokens of the windows of ``source`` in the update after ``step``."""
    place = Schedule(spec).place(step)
    found = Stream(spec).locate(place.stage, place.first_sequence + np.arange(place.batch_sequences))
    return found.token[found.source == source].tolist()


def touches(shard, token: int, length: int = 64) -> bool:
    return token < shard.first_token + shard.tokens and token + length >= shard.first_token


def test_D_damage_stops_a_run_that_may_not_go_on_without(damaged, tmp_path):
    bench, damage = damaged
    outcome = bench.go(bench.run(tmp_path / "run"), max_fruitless_attempts=1)
    assert outcome.state == "failed"
    assert damage["shard"] in outcome.reason
    assert "block 0" in outcome.reason


def test_D_damage_is_left_out_on_record_and_a_replay_gives_the_same(damaged, tmp_path, capsys):
    bench, damage = damaged
    run = bench.run(tmp_path / "run", overrides=QUARANTINE)
    assert bench.go(run).state == "complete"
    _, second = read_segments(run)
    (record,) = second.quarantines
    assert (record["source"], record["token"], record["tokens"]) == (damage["source"], damage["token"], damage["tokens"])
    assert second.reason.startswith("quarantine: ")
    (event,) = [e for e in read_events(run) if e["kind"] == "quarantine"]
    assert {key: event[key] for key in damage} == damage
    place = Schedule(run.spec()).place(second.restored_step)
    assert (record["stage"], record["first"]) == (place.stage, place.first_sequence)
    rows = [row for row in read_chain_rows(run, current_chain(read_segments(run))).kept if row["kind"] == "step"]
    assert [row["step"] for row in rows] == list(range(1, 25))
    steps = [row["step"] for row in rows if row.get("replaced")]
    assert steps
    capsys.readouterr()
    assert run_guarded(["data", "show", str(run.root), str(steps[0])]) == 0, "what stood in is read, and shown"
    assert f"left out {damage['tokens']} damaged tokens of words" in capsys.readouterr().out
    again = bench.run(
        tmp_path / "again", overrides=QUARANTINE, faults=[{"point": "step.gradients", "action": "kill", "step": 20}]
    )
    assert bench.go(again).state == "complete"
    assert len(read_segments(again)) == 3
    assert trace(again) == trace(run)


def test_D_a_large_part_of_a_source_is_not_left_out(damaged, tmp_path, monkeypatch):
    """The record would outlive the damage: a run whose data is restored must be able to go on."""
    bench, damage = damaged
    monkeypatch.setattr(supervisor, "MOST_LEFT_OUT", 0.001)
    run = bench.run(tmp_path / "run", overrides=QUARANTINE)
    outcome = bench.go(run, max_fruitless_attempts=3)
    assert outcome.state == "failed"
    assert outcome.attempts == 1, "another would meet the same"
    assert damage["shard"] in outcome.reason
    assert f"not left out, though interventions.damaged_data is quarantine: {damage['tokens']:,} of the " in outcome.reason
    assert not any(segment.quarantines for segment in read_segments(run))


def test_D_ranks_leave_the_same_out(damaged, tmp_path):
    bench, _ = damaged
    layouts = {"default": {"dp_shard": 2}}
    run = bench.run(tmp_path / "run", overrides=QUARANTINE, layouts=layouts)
    assert bench.go(run).state == "complete"
    alone = bench.run(tmp_path / "alone", overrides=QUARANTINE)
    assert bench.go(alone).state == "complete"
    assert [s.quarantines for s in read_segments(run)][-1] == [s.quarantines for s in read_segments(alone)][-1]
    assert trace(run).losses == pytest.approx(trace(alone).losses, rel=1e-3)

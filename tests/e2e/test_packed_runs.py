"""Runs whose stages are packed by best fit: killed and resumed, in several processes, and on damaged data."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from conftest_e2e import Bench, trace

from headway.data.build import build_data
from headway.data.manifest import DataManifest, ShardEntry
from headway.data.reader import TokenReader
from headway.data.stream import Stream
from headway.recipe.load import load_recipe
from headway.recipe.schedules import Schedule
from headway.rundir.events import read_events
from headway.rundir.metrics import read_chain_rows
from headway.rundir.segments import current_chain, read_segments

pytestmark = pytest.mark.e2e

QUARANTINE = ("interventions.damaged_data=quarantine",)
FLOAT32 = ("precision.compute=float32",)
FSDP2, TP2 = {"default": {"dp_shard": 2}}, {"default": {"tp": 2}}
ALONE: dict[str, dict[str, int]] = {}
SUMMATION = 1e-6
"""Relative, of losses: sums over the same tokens in another order."""
STOPPED, KILLED, RELAID = 4, 7, 17
"""Steps: before anything is damaged; after the first quarantine, before a checkpoint under it; where the layout changes."""


def built(bench: Bench, root, **options) -> Bench:
    """Both stages packed, of two lengths; fill-in-the-middle in one of them."""
    main, anneal = bench.recipe_text.split('name = "anneal"')
    main = main.replace("sequence = 64\n", 'sequence = 64\npacking = "best-fit"\n')
    anneal = anneal.replace("sequence = 64\n", 'sequence = 128\npacking = "best-fit"\n')
    anneal = anneal.replace("[optimizer]", "[stages.infill]\nrate = 0.5\n\n[optimizer]", 1)
    main = main.replace("vocabulary = 400\n", 'vocabulary = 400\nfim_tokens = ["<|pre|>", "<|suf|>", "<|mid|>"]\n')
    text = main.replace("[data]\n", "[data]\nchunk = 512\n") + 'name = "anneal"' + anneal
    (root / "small.toml").write_text(text)
    build_data(load_recipe(root / "small.toml", []).recipe, root / "data", **options)
    return Bench(root, root / "data", text)


@pytest.fixture(scope="module")
def packed(bench, tmp_path_factory) -> Bench:
    return built(bench, tmp_path_factory.mktemp("packed"))


@pytest.fixture(scope="module")
def undisturbed(packed, tmp_path_factory):
    run = packed.run(tmp_path_factory.mktemp("undisturbed") / "run")
    assert packed.go(run).state == "complete"
    return run


def steps_of(run) -> list[dict]:
    return [row for row in read_chain_rows(run, current_chain(read_segments(run))).kept if row["kind"] == "step"]


def test_killed_and_resumed_is_the_undisturbed_run(packed, undisturbed, tmp_path):
    run = packed.run(tmp_path / "run", faults=[{"point": "step.gradients", "action": "kill", "step": 11}])
    assert packed.go(run).state == "complete"
    assert len(read_segments(run)) == 2, "the kill must have happened"
    assert trace(run) == trace(undisturbed)


def test_the_targets_on_record_are_those_that_count(packed, undisturbed):
    spec = packed.spec()
    reader, stream, schedule = TokenReader.open(packed.data, spec), Stream(spec), Schedule(spec)
    rows = steps_of(undisturbed)
    for number, row in enumerate(rows):
        place = schedule.place(number)
        u = np.arange(place.first_sequence, place.end_sequence)
        stage = spec.stages[place.stage]
        batch = reader.stage_batch(stream.locate(place.stage, u), stage)
        assert row["targets"] == batch.scored_BT.sum()
    assert any(row["targets"] < row["sequences"] * 64 for row in rows), "there is padding"


def test_middles_are_filled_in_where_the_recipe_says(packed):
    spec = packed.spec()
    reader, stream = TokenReader.open(packed.data, spec), Stream(spec)
    fim = DataManifest.load(packed.data).tokenizer.fim
    found = []
    for number, stage in enumerate(spec.stages):
        tokens = reader.stage_batch(stream.locate(number, np.arange(stage.sequences)), stage).tokens_BT
        found.append([int((tokens == token).sum()) for token in fim])
    assert found[0] == [0, 0, 0]
    assert found[1][0] == found[1][1] == found[1][2] > 5


def test_two_processes_train_the_same(packed, undisturbed, tmp_path):
    layouts = {"main": {"dp_shard": 2}, "anneal": {"dp_shard": 2}}
    run = packed.run(tmp_path / "run", layouts=layouts, overrides=("precision.compute=float32",))
    assert packed.go(run).state == "complete"
    alone = packed.run(tmp_path / "alone", overrides=("precision.compute=float32",))
    assert packed.go(alone).state == "complete"
    for one, two in zip(steps_of(alone), steps_of(run), strict=True):
        assert two["targets"] == one["targets"]
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3)


def read_steps_of(made: Bench, source: int, shard: ShardEntry) -> list[int]:
    """The steps whose update reads of ``shard``, in order, where nothing is damaged."""
    spec = made.spec()
    reader, stream, schedule = TokenReader.open(made.data, spec), Stream(spec), Schedule(spec)
    found = []
    for step in range(schedule.total_steps):
        place = schedule.place(step)
        T = spec.stages[place.stage].sequence_length
        at = stream.locate(place.stage, np.arange(place.first_sequence, place.end_sequence))
        for bin in at.token[at.source == source].tolist():
            pieces = reader.pieces(source, bin, T)
            found += [step for a, n in pieces.tolist() if a < shard.first_token + shard.tokens and a + n >= shard.first_token]
    return found


def damage(made: Bench, shard: ShardEntry) -> None:
    path = made.data / shard.file
    content = bytearray(path.read_bytes())
    content[7] ^= 4
    path.write_bytes(content)


def test_D9_damaged_tokens_are_left_out_of_packed_windows(bench, tmp_path):
    """Shards of one small block each: the bins that read it are replaced, in the stage that met it and in the one after."""
    (tmp_path / "made").mkdir()
    made = built(bench, tmp_path / "made", shard_bytes=1024)
    number = next(at for at, source in enumerate(made.spec().sources) if source.name == "words")
    shards = DataManifest.load(made.data).sources[number].shards
    shard = next(s for s in shards if (found := read_steps_of(made, number, s)) and min(found) >= 5 and max(found) >= 18)
    damage(made, shard)
    run = made.run(tmp_path / "run", overrides=QUARANTINE)
    assert made.go(run).state == "complete"
    (record,) = read_segments(run)[-1].quarantines
    assert (record["source"], record["token"], record["tokens"]) == ("words", shard.first_token, shard.tokens)
    assert [entry["sequence_length"] for entry in record["packed"]] == [64, 128]
    assert sum(event["kind"] == "quarantine" for event in read_events(run)) == 1
    assert sum(row.get("replaced", 0) for row in steps_of(run)) >= 2


# --- damaged under one layout, resumed under another -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_shards(bench, tmp_path_factory) -> Bench:
    """Shards of one small block each, all whole."""
    return built(bench, tmp_path_factory.mktemp("small_shards"), shard_bytes=1024)


def copied(made: Bench, root) -> Bench:
    shutil.copytree(made.data, root / "data")
    return Bench(root, root / "data", made.recipe_text)


def to_be_damaged(made: Bench) -> dict[str, ShardEntry]:
    """By source: a shard first read between the stop and the kill, and again after the change of layout; one read only there."""
    found = {}
    for number, source in enumerate(DataManifest.load(made.data).sources):
        firsts = {"words": range(STOPPED, KILLED - 1), "numbers": range(RELAID + 2, 23)}[source.name]
        steps = {shard: read_steps_of(made, number, shard) for shard in source.shards}
        found[source.name] = next(s for s, at in steps.items() if at and min(at) in firsts and max(at) > RELAID)
    return found


def read_by(run, row, reader: TokenReader) -> np.ndarray:
    """What the update of a step on record read, under the records of the segment that did it: (targets, tokens and targets)."""
    spec = run.spec()
    place = Schedule(spec).place(row["step"] - 1)
    stream = Stream.of_segment(spec, next(s for s in read_segments(run) if s.id == row["segment"]))
    at = stream.locate(place.stage, np.arange(place.first_sequence, place.end_sequence))
    batch = reader.stage_batch(at, spec.stages[place.stage])
    assert row["targets"] == batch.scored_BT.sum()
    return np.stack([batch.tokens_BT, batch.targets_BT])


@pytest.fixture(scope="module")
def never_relaid(small_shards, tmp_path_factory):
    """The run of two processes on data that is damaged from the start, which nothing else disturbs."""
    made = copied(small_shards, tmp_path_factory.mktemp("never_relaid"))
    for shard in to_be_damaged(made).values():
        damage(made, shard)
    run = made.run(made.root / "run", overrides=(*QUARANTINE, *FLOAT32), layouts=FSDP2)
    assert made.go(run).state == "complete"
    return run


@pytest.mark.parametrize("layouts", [ALONE, TP2], ids=["alone", "tp2"])
def test_D9_C10_a_quarantine_goes_on_under_another_layout(small_shards, never_relaid, tmp_path, layouts):
    """Stopped, damaged, quarantined, killed, stopped, relaid, quarantined again: the stream is that of the run never relaid."""
    made = copied(small_shards, tmp_path)
    shards = to_be_damaged(made)
    faults = [
        {"point": "step.gradients", "action": action, "step": step}
        for action, step in (("terminate", STOPPED), ("kill", KILLED), ("terminate", RELAID))
    ]
    run = made.run(tmp_path / "run", overrides=(*QUARANTINE, *FLOAT32), layouts=FSDP2, faults=faults)
    assert made.go(run).state == "stopped"
    for shard in shards.values():
        damage(made, shard)
    assert made.go(run).state == "stopped"
    assert made.go(run, layouts=layouts).state == "complete"

    segments = read_segments(run)
    reasons, worlds = [s.reason.partition(":")[0] for s in segments], [s.layout["world"] for s in segments]
    assert reasons == ["start", "resume", "quarantine", "restart", "resume", "quarantine"]
    assert worlds == [2, 2, 2, 2, *[2 if layouts == TP2 else 1] * 2]
    assert [s.restored_step for s in segments] == [0, STOPPED, STOPPED, STOPPED, RELAID, 20]
    left_out = [(record["source"], record["token"]) for record in segments[-1].quarantines]
    assert left_out == [(name, shards[name].first_token) for name in ("words", "numbers")]
    assert segments[-1].quarantines == read_segments(never_relaid)[-1].quarantines

    rows, others = steps_of(run), steps_of(never_relaid)
    reader = TokenReader.open(small_shards.data, run.spec())
    for mine, theirs in zip(rows, others, strict=True):
        for key in ("step", "stage", "u", "sequences", "targets", "tokens", "replaced"):
            assert mine.get(key, 0) == theirs.get(key, 0), (key, mine["step"])
        assert (read_by(run, mine, reader) == read_by(never_relaid, theirs, reader)).all(), mine["step"]
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=SUMMATION), mine["step"]
        if mine["step"] <= RELAID:
            assert mine["digest"] == theirs["digest"], f"one layout, so bit for bit: step {mine['step']}"
    assert {row["stage"] for row in rows if row.get("replaced")} == {"main", "anneal"}

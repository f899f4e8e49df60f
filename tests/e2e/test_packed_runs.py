"""Runs whose stages are packed by best fit: killed and resumed, in several processes, and on damaged data."""

from __future__ import annotations

import numpy as np
import pytest
from conftest_e2e import Bench, trace

from headway.data.build import build_data
from headway.data.manifest import DataManifest
from headway.data.reader import TokenReader
from headway.data.stream import Stream
from headway.recipe.load import load_recipe
from headway.recipe.schedules import Schedule
from headway.rundir.events import read_events
from headway.rundir.metrics import read_chain_rows
from headway.rundir.segments import current_chain, read_segments

pytestmark = pytest.mark.e2e


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


def test_D9_damaged_tokens_are_left_out_of_packed_windows(bench, tmp_path):
    """Shards of one small block each: the bins that read it are replaced, in the stage that met it and in the one after."""
    (tmp_path / "made").mkdir()
    made = built(bench, tmp_path / "made", shard_bytes=1024)
    manifest, spec = DataManifest.load(made.data), made.spec(("interventions.damaged_data=quarantine",))
    reader, stream, schedule = TokenReader.open(made.data, spec), Stream(spec), Schedule(spec)
    number = next(at for at, source in enumerate(spec.sources) if source.name == "words")

    def reads(shard) -> list[int]:
        """The steps that read of it."""
        found = []
        for step in range(schedule.total_steps):
            place = schedule.place(step)
            T = spec.stages[place.stage].sequence_length
            at = stream.locate(place.stage, np.arange(place.first_sequence, place.end_sequence))
            for bin in at.token[at.source == number].tolist():
                pieces = reader.pieces(number, bin, T)
                found += [step for a, n in pieces.tolist() if a < shard.first_token + shard.tokens and a + n >= shard.first_token]
        return found

    shard = next(s for s in manifest.sources[number].shards if (found := reads(s)) and min(found) >= 5 and max(found) >= 18)
    path = made.data / shard.file
    content = bytearray(path.read_bytes())
    content[7] ^= 4
    path.write_bytes(content)
    run = made.run(tmp_path / "run", overrides=("interventions.damaged_data=quarantine",))
    assert made.go(run).state == "complete"
    (record,) = read_segments(run)[-1].quarantines
    assert (record["source"], record["token"], record["tokens"]) == ("words", shard.first_token, shard.tokens)
    assert [entry["sequence_length"] for entry in record["packed"]] == [64, 128]
    assert sum(event["kind"] == "quarantine" for event in read_events(run)) == 1
    assert sum(row.get("replaced", 0) for row in steps_of(run)) >= 2

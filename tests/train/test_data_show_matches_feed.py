"""What ``headway data show`` prints is what training reads: step by step against the feed, over stages, ramp, replicas, skips."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headway.cli.main import run_guarded
from headway.data.build import build_data
from headway.data.freeze import freeze
from headway.data.inspect.show import Sequence, Show, Span, narrowed
from headway.data.manifest import BLOCK_BYTES, DataManifest
from headway.data.reader import TokenReader
from headway.data.stream import Skip, Stream
from headway.data.tokenizer import Tokenizer
from headway.recipe.load import load_recipe
from headway.recipe.schedules import Schedule
from headway.rundir.create import RunInfo, create_run
from headway.rundir.segments import Segment, write_segment
from headway.train.feed import Feed, Replica

RECIPE = """
kind = "recipe"
schema_version = 1
name = "three-stages"
seed = 5
tokenizer = { vocabulary = 300 }
model = { layers = 1, width = 32, heads = 2 }
optimizer = { peak_rate = 1e-3 }
evaluation = { every = 512, tokens_per_source = 64 }

[data]
held_out = 100
chunk = 128

[[data.sources]]
name = "prose"
kind = "jsonl"
path = "ROOT/prose.jsonl"
licence = "CC0-1.0"
provenance = "made up for a test"

[[data.sources]]
name = "code"
kind = "jsonl"
path = "ROOT/code.jsonl"
licence = "MIT"

[[stages]]
name = "main"
tokens = 2048
sequence = 16
ramp = [{ from = 0, batch = 64 }, { from = 512, batch = 160 }]
rate = { shape = "constant" }
mixture = { prose = 0.7, code = 0.3 }

[[stages]]
name = "long"
tokens = 2048
sequence = 64
batch = 320
rate = { shape = "constant" }
mixture = { prose = 0.5, code = 0.5 }

[[stages]]
name = "decay"
tokens = 1024
sequence = 32
batch = 96
rate = { shape = "linear" }
mixture = { prose = 0.1, code = 0.9 }
"""
SKIPS = (Skip(0, 3, 5), Skip(0, 40, 2), Skip(2, 0, 7))


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("three")
    random = np.random.default_rng(0)
    for name, count, longest in (("prose", 150, 40), ("code", 200, 9)):
        words = [["ka", "to", "mi\u00e9", "\u4f60\u597d", "\U0001f600", "\x1b[2J"][i] for i in random.integers(0, 6, 9_000)]
        texts = [f"{name} {i} " + " ".join(words[i * 7 : i * 7 + int(random.integers(1, longest))]) for i in range(count)]
        (root / f"{name}.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts) + "\n")
    (root / "recipe.toml").write_text(RECIPE.replace("ROOT", str(root)))
    build_data(load_recipe(root / "recipe.toml"), root / "data", shard_bytes=2_048)
    return root


@pytest.fixture(scope="module")
def parts(built) -> tuple:
    """Spec, manifest."""
    manifest = DataManifest.load(built / "data")
    return freeze(load_recipe(built / "recipe.toml"), manifest), manifest


def rows_of(batch) -> Iterator[tuple]:
    """Of a step's batch, sequence by sequence: row, tokens, targets, document borders, source, whether it counts."""
    places = [row for rows in batch.rows for row in rows]
    scored = [True] * (len(places) - batch.padded) + [False] * batch.padded
    at = 0
    for micro in batch.micro_batches:
        for row in range(len(micro.tokens_BT)):
            opens = np.flatnonzero(np.diff(micro.document_BT[row], prepend=-1)).tolist()
            tokens, targets = micro.tokens_BT[row].tolist(), micro.targets_BT[row].tolist()
            yield places[at], tokens, targets, opens, int(micro.source_B[row]), scored[at]
            at += 1


def shown(sequence: Sequence, names: list[str]) -> tuple:
    opens = [piece.column for piece in sequence.pieces]
    source = names.index(sequence.source.name)
    return sequence.row, list(sequence.tokens), list(sequence.targets), opens, source, not sequence.padding


@pytest.mark.parametrize("skips", [(), SKIPS], ids=["no skips", "skips"])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_step_and_replica_is_what_the_feed_gives(built, parts, skips, count):
    spec, manifest = parts
    schedule, names = Schedule(spec), [source.name for source in spec.sources]
    show = Show(Stream(spec, skips), built / "data", manifest)
    assert {stage.phases for stage in spec.stages if len(stage.phases) > 1}, "a ramp is part of this test"
    for index in range(count):
        feed = Feed(Stream(spec, skips), TokenReader.open(built / "data", spec), schedule, 64, Replica(index, count))
        for step in range(1, schedule.total_steps + 1):
            place = show.step(step)
            found = show.sequences(place, show.replica(place, index, count))
            assert [shown(sequence, names) for sequence in found] == list(rows_of(feed.fetch(step - 1)))


def test_the_whole_batch_is_all_replicas_and_stands_in_its_order(built, parts):
    spec, manifest = parts
    show = Show(Stream(spec, SKIPS), built / "data", manifest)
    place = show.step(9)
    whole = show.sequences(place, show.batch(place))
    assert [sequence.row for sequence in whole] == list(range(place.batch_sequences))
    shares = [s for i in range(3) for s in show.sequences(place, show.replica(place, i, 3)) if not s.padding]
    assert sorted(shares, key=lambda sequence: sequence.row) == whole


def test_steps_of_a_stage_and_indices_lead_to_the_same_sequences(built, parts):
    spec, manifest = parts
    show, schedule = Show(Stream(spec, SKIPS), built / "data", manifest), Schedule(spec)
    for stage in range(3):
        for step in range(1, schedule.stage_steps(stage) + 1):
            place = show.step(step, stage)
            assert place == show.step(schedule.first_step(stage) + step)
            assert {show.step_of(stage, u) for u in range(place.first_sequence, place.end_sequence)} == {place}


def test_documents_places_and_bytes_are_those_of_the_source(built, parts):
    """Against the decoded source itself: each piece is the part of its document that it says it is."""
    spec, manifest = parts
    directory = built / "data"
    tokenizer = Tokenizer.load(directory / "tokenizer.json", manifest.tokenizer.document_token)
    show = Show(Stream(spec, SKIPS), directory, manifest)
    seen_skip = False
    for step in (1, 5, 9, 14, 20):
        place = show.step(step)
        T = spec.stages[place.stage].sequence_length
        for sequence in show.sequences(place, show.batch(place)):
            entry, at = sequence.source, sequence.place
            flat = np.concatenate([np.fromfile(directory / shard.file, "<u2") for shard in entry.shards])
            ends = np.fromfile(directory / entry.ends.file, "<u8").astype(int)
            assert flat[at.first_token : at.first_token + T].tolist() == list(sequence.tokens)
            assert at.first_token == at.chunk * entry.chunk_tokens + at.window * T
            assert at.window < at.windows
            assert at.chunk < at.chunks
            raw = b"".join((directory / r.file).read_bytes()[r.first_byte : r.end_byte] for r in sequence.reads)
            assert np.frombuffer(raw, "<u2").tolist() == [*sequence.tokens, sequence.targets[-1]]
            assert all(r.first_block == r.first_byte // BLOCK_BYTES for r in sequence.reads)
            for piece in sequence.pieces:
                head = ends[piece.document - 1] if piece.document else 0
                document = flat[head : ends[piece.document]]
                assert piece.document_tokens == len(document)
                ids = document[piece.offset : piece.offset + piece.tokens].tolist()
                assert ids == list(sequence.tokens[piece.column : piece.column + piece.tokens])
                assert piece.begins == (ids[0] == manifest.tokenizer.document_token_id)
                assert piece.text == tokenizer.decode(ids[1:] if piece.begins else ids)
            seen_skip |= sequence.n != sequence.u
    assert seen_skip


def test_every_window_has_all_its_shards_and_no_other(parts):
    manifest = parts[1]
    entry, T = manifest.sources[0], 16
    assert len(entry.shards) > 2
    for start in range(entry.tokens - T):
        narrow = narrowed(manifest, np.array([0]), [(Span(start, T, 0),)])
        needed = [s for s in entry.shards if any(0 <= at - s.first_token < s.tokens for at in (start, start + T))]
        assert [source.name for source in narrow.sources] == [entry.name]
        assert list(narrow.sources[0].shards) == needed, start


def test_only_the_shards_of_the_windows_are_opened(built, parts, tmp_path):
    """Everything that a sequence does not lie in may be gone or damaged."""
    import shutil

    spec, manifest = parts
    data = Path(shutil.copytree(built / "data", tmp_path / "data"))
    show = Show(Stream(spec), data, manifest)
    place = show.step(4)
    (wanted, *_) = show.sequences(place, show.batch(place))
    share = dataclasses.replace(show.batch(place), u=np.array([wanted.u]))
    needed = {part.file for part in wanted.reads} | {wanted.source.ends.file, "tokenizer.json", "manifest.json"}
    facts = wanted.source.document_facts
    needed |= {facts.facts.file, facts.training.origins.file, facts.training.index.file}
    for path in data.rglob("*"):
        if path.is_file() and path.relative_to(data).as_posix() not in needed:
            path.unlink()
    assert show.sequences(place, share) == [wanted]
    (data / facts.facts.file).unlink()
    (without,) = show.sequences(place, share)
    assert without.tokens == wanted.tokens
    assert {piece.origin for piece in without.pieces} == {None}, "labels: what is trained on is read without them"


# --- the verb -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(built, parts, tmp_path_factory) -> Path:
    """A run of two segments; the second skips."""
    root = tmp_path_factory.mktemp("runs") / "run"
    directory = create_run(root, spec=parts[0], recipe_text="", info=RunInfo(data=str(built / "data"), deployment={}))
    write_segment(directory, Segment(1, None, 0, None, "start", "automatic", 1, {}))
    write_segment(
        directory,
        Segment(2, 1, 2, "g0001-s00000002", "loss spike", "automatic", 2, {}, tuple(map(dataclasses.asdict, SKIPS))),
    )
    return root


def asked(capsys, *arguments) -> dict:
    assert run_guarded(["data", "show", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("segment", "skips"), [(1, ()), (2, SKIPS), (None, SKIPS)])
def test_the_verb_shows_a_run_under_the_skips_of_its_segment(built, parts, run, capsys, segment, skips):
    spec = parts[0]
    feed = Feed(Stream(spec, skips), TokenReader.open(built / "data", spec), Schedule(spec), 64, Replica(1, 3))
    chosen = ["--segment", segment] if segment else []
    for step in (1, 7, Schedule(spec).total_steps):
        found = asked(capsys, run, step, "--replica", "1/3", *chosen)
        rows = list(rows_of(feed.fetch(step - 1)))
        assert [(s["row"], s["tokens"], s["targets"], not s["padding"]) for s in found["sequences"]] == [
            (row, tokens, targets, counts) for row, tokens, targets, _, _, counts in rows
        ]
        assert found["skips"] == [dataclasses.asdict(skip) for skip in skips]


def test_data_with_a_recipe_is_the_stream_of_a_run_without_skips(built, run, capsys):
    of_run = asked(capsys, run, 6, "--segment", 1)
    of_recipe = asked(capsys, built / "data", 6, "--recipe", built / "recipe.toml")
    assert of_run["sequences"] == of_recipe["sequences"]
    assert of_run["manifest_digest"] == of_recipe["manifest_digest"]


def test_one_sequence_by_row_by_stage_and_by_index(run, capsys):
    whole = asked(capsys, run, 2, "--stage", "long")
    (row,) = asked(capsys, run, 2, "--stage", "long", "--sequence", 3)["sequences"]
    assert row == whole["sequences"][3]
    found = asked(capsys, run, "--stage", "long", "--index", row["u"])
    assert found["sequences"] == [row]
    assert (found["step"], found["step_of_stage"]) == (whole["step"], 2)


def test_people_see_text_licence_and_no_control_characters(run, capsys):
    assert run_guarded(["data", "show", str(run), "3", "--full", "99", "--tokens"]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "\\x1b[2J" in text
    assert "CC0-1.0" in text
    assert "made up for a test" in text
    assert "  # " in text
    assert run_guarded(["data", "show", str(run), "3", "--json"]) == 0
    assert capsys.readouterr().out.isascii()


@pytest.mark.parametrize(
    ("arguments", "seen", "way_out"),
    [
        (["RUN"], "no step is named", "RUN 120"),
        (["RUN", "0"], "there is no step 0", "steps 1 to"),
        (["RUN", "9999"], "there is no step 9,999", "steps 1 to"),
        (["RUN", "1", "--stage", "mian"], "there is no stage 'mian'", "main, long, decay"),
        (["RUN", "1", "--sequence", "99"], "there is no sequence 99", "0 to 3"),
        (["RUN", "1", "--replica", "3/3"], "--replica 3/3", "0/8"),
        (["RUN", "1", "--replica", "\u0661/3"], "--replica", "0/8"),
        (["RUN", "--index", "3"], "--index without --stage", "--stage NAME"),
        (["RUN", "--stage", "main", "--index", "9999"], "there is no index 9,999", "indices 0 to"),
        (["RUN", "1", "--segment", "8"], "has no segment 8", "there are: 1, 2"),
        (["RUN", "1", "--recipe", "demo"], "--recipe with a run", "leave --recipe out"),
        (["DATA", "1"], "is data, not a run", "--recipe"),
        (["NOTHING", "1"], "is no data directory and no run", "by a run that reads it"),
        (["NOTHING", "1", "--recipe", "RECIPE"], "is no data directory", "by a run that reads it"),
        (["DATA", "1", "--recipe", "demo"], "the data was built with vocabulary 300", "headway data build"),
    ],
)
def test_mistakes_have_a_clear_message(built, run, tmp_path, capsys, arguments, seen, way_out):
    places = {"RUN": run, "DATA": built / "data", "NOTHING": tmp_path, "RECIPE": built / "recipe.toml"}
    code = run_guarded(["data", "show", *(str(places.get(argument, argument)) for argument in arguments)])
    text = capsys.readouterr().err
    assert code == 2, text
    assert seen in text
    assert way_out in text
    assert "internal error" not in text

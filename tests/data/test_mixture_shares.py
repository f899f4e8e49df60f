"""Shares as realised, against counting every sequence and document one by one; and the verb that shows them."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from data_helpers import small_spec, write_token_data
from hypothesis import given, settings
from hypothesis import strategies as st
from test_stream_positions import skip_records, specs

from headway.base.errors import ConfigError
from headway.cli.main import run_guarded
from headway.data.inspect.mixture import report, worth
from headway.data.reader import TokenReader
from headway.data.shares import Part, parts, stage_shares, together
from headway.data.stream import Stream, Transition
from headway.recipe.schedules import Schedule
from headway.recipe.spec import BatchPhase

STAGES = [(300, 16, (40_000, 25_536)), (120, 32, (9_000, 56_536))]
SOURCES = [("a", 9_001, 256), ("b", 5_003, 128)]


def counted(stream: Stream, stage: int, first: int, end: int) -> list[int]:
    source = stream.locate(stage, np.arange(first, end)).source
    return np.bincount(source, minlength=len(stream.shapes)).tolist()


@given(specs(), st.data())
@settings(max_examples=40, deadline=None)
def test_any_part_of_a_stage_is_counted_exactly(spec, data):
    count = len(spec.sources)
    changes = []
    for _ in range(data.draw(st.integers(0, 2))):
        even = [65_536 // count] * count
        even[0] += 65_536 - sum(even)
        stage = data.draw(st.integers(0, len(spec.stages) - 1))
        changes.append(Transition(stage, data.draw(st.integers(0, 250)), tuple(even)))
    stream = Stream(spec, data.draw(skip_records(spec)), (), tuple(changes))
    for number, stage in enumerate(spec.stages):
        first = data.draw(st.integers(0, stage.sequences - 1))
        end = data.draw(st.integers(first + 1, stage.sequences))
        shares = stage_shares(stream, Part(number, first, end))
        wanted = counted(stream, number, first, end)
        assert [row.sequences for row in shares.sources] == wanted
        assert sum(row.realised for row in shares.sources) == pytest.approx(1)
        assert sum(row.given for row in shares.sources) == pytest.approx(1)
        for row in shares.sources:
            assert abs(row.sequences - row.given * (end - first)) <= 12, "a few sequences for each mixture and skip on the way"


def test_shares_are_of_target_tokens():
    spec = small_spec(SOURCES, STAGES)
    half = dataclasses.replace(spec, sources=(dataclasses.replace(spec.sources[0], target_share=0.5), spec.sources[1]))
    a, b = stage_shares(Stream(half), Part(0, 0, 300)).sources
    assert a.target_tokens == a.sequences * 8
    assert a.tokens == a.sequences * 16
    assert a.realised == pytest.approx(a.sequences / (a.sequences + 2 * b.sequences))
    assert a.asked == pytest.approx(20_000 / (20_000 + 25_536))


def test_steps_are_cut_into_stages_and_put_together():
    spec = small_spec(SOURCES, STAGES)
    phases = ((BatchPhase(0, 10), BatchPhase(100, 20)), (BatchPhase(0, 30),))
    spec = dataclasses.replace(spec, stages=tuple(dataclasses.replace(s, phases=p) for s, p in zip(spec.stages, phases)))
    assert Schedule(spec).total_steps == 24
    assert parts(spec, 0, 24) == [Part(0, 0, 300), Part(1, 0, 120)]
    assert parts(spec, 5, 21) == [Part(0, 50, 300), Part(1, 0, 30)]
    assert parts(spec, 20, 24) == [Part(1, 0, 120)]
    assert parts(spec, 7, 7) == []
    stream = Stream(spec)
    whole = together([stage_shares(stream, part) for part in parts(spec, 5, 21)])
    wanted = np.array(counted(stream, 0, 50, 300)) * 16 + np.array(counted(stream, 1, 0, 30)) * 32
    assert [row.tokens for row in whole] == wanted.tolist()
    assert [row.realised for row in whole] == pytest.approx((wanted / wanted.sum()).tolist())
    asked = (40_000 * 250 * 16 + 9_000 * 30 * 32) / 65_536
    assert whole[0].asked == pytest.approx(asked / wanted.sum())


@given(st.integers(0, 10), st.integers(1, 60))
@settings(max_examples=20, deadline=None)
def test_documents_are_those_that_begin_in_what_is_read(tmp_path_factory, first, length):
    numbers = np.random.default_rng(4)
    documents = [[[0, *numbers.integers(1, 200, numbers.integers(0, 50)).tolist()] for _ in range(n)] for n in (50, 30)]
    root = tmp_path_factory.mktemp("documents")
    manifest = write_token_data(root, documents)
    spec = small_spec([(s.name, s.tokens, s.chunk_tokens) for s in manifest.sources], [(200, 16, (30_000, 35_536))])
    stream, part = Stream(spec), Part(0, first, first + length)
    heads = [np.cumsum([0, *map(len, source)])[:-1] for source in documents]
    places = stream.locate(0, np.arange(part.first, part.end))
    wanted = [0, 0]
    for k, token in zip(places.source.tolist(), places.token.tolist()):
        wanted[k] += int(((heads[k] >= token) & (heads[k] < token + 16)).sum())
    count = TokenReader(root, manifest).documents_begun
    assert [row.documents for row in stage_shares(stream, part, count).sources] == wanted


def test_a_report_has_caps_unread_chunks_and_what_repeats_are_worth():
    spec = small_spec([("a", 10_001, 1_000, 5.0), ("b", 5_001, 1_000)], [(13, 100, (65_536, 0)), (100, 200, (32_768, 32_768))])
    found = report(spec, Stream(spec), (0, 113), done=20)
    a, b = found.sources
    assert a.coverage is not None
    assert (a.coverage.final_slot, a.coverage.allowed_slots, a.slots_now) == (12, 50, 3)
    assert [(u.slot, u.tokens) for u in a.unread] == [(1, 700)]
    assert b.passes == pytest.approx(2, rel=1e-3)
    assert b.worth == worth(10_000.0, 5_001)
    assert b.worth is not None
    assert b.worth.low < b.worth.effective < b.worth.tokens
    assert [stage.shares is not None for stage in found.stages] == [True, True]
    with pytest.raises(ConfigError, match="there are no steps"):
        report(spec, Stream(spec), (0, 114))
    draft = report(spec, None, (0, 0))
    assert draft.whole == ()
    assert [stage.shares for stage in draft.stages] == [None, None]


RECIPE = """\
kind = "recipe"
name = "shown"
tokenizer = { vocabulary = 300 }
model = { layers = 1, width = 8, heads = 1 }
optimizer = { peak_rate = 1e-3 }
evaluation = { every = "100k" }
[data]
held_out = "100"
sources = [{ name = "a", kind = "undisclosed", inventory = "100k" }, { name = "b", kind = "undisclosed" }]
[[stages]]
name = "main"
tokens = "64k"
sequence = 64
batch = 1024
"""


def test_a_recipe_is_shown_before_its_data_is_built(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.toml").write_text(RECIPE + "mixture = { a = 3, b = 1 }\n")
    assert run_guarded(["data", "mixture", "r.toml", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["built"] is False
    assert told["stages"][0]["asked"] == {"a": 0.75, "b": 0.25}
    assert told["stages"][0]["realised"] is None
    assert run_guarded(["data", "mixture", "r.toml"]) == 0
    assert "its data is not built" in capsys.readouterr().out
    for wrong in (["--documents"], ["--steps", "1-5"], ["--steps", "5"]):
        assert run_guarded(["data", "mixture", "r.toml", *wrong]) == 2
    (tmp_path / "r.toml").write_text(RECIPE + 'mixture_rule = { kind = "unimax", epochs = 4 }\n')
    capsys.readouterr()
    for verb in (["data", "mixture", "r.toml"], ["plan", "r.toml"]):
        assert run_guarded(verb) == 2
        assert "r.toml:15: stage main: its mixture follows from the sizes of its sources" in capsys.readouterr().err

"""Axes of quality: each scored, thresholded, counted and summed up for itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from data_helpers import small_recipe
from hypothesis import example, given
from hypothesis import strategies as st
from prepare_helpers import library, prepared

from headway.base.files import read_json
from headway.cli.data import prepared_line
from headway.data.build import build_data
from headway.data.manifest import REPORT_FILE
from headway.data.prepare import axes
from headway.data.prepare.axes import brackets_close, density, parse_integrity
from headway.data.prepare.steps import Piece
from headway.data.sources.jsonl import numbers_of
from headway.recipe.checks import check_recipe


def of(text: str, origin: str = "x.txt", **numbers: float) -> Piece:
    return Piece(text, origin, "s", numbers=numbers)


def known(score: float) -> float | None:
    return None if score != score else score


def test_what_parses_is_told_from_what_does_not_and_from_what_nobody_knows():
    assert [parse_integrity(of(text, "a.py")) for text in ("x = 1\n", "x = = 1\n", "x = '\\d'\n")] == [1.0, 0.0, 1.0]
    assert [parse_integrity(of(text, "a.json")) for text in ('{"a": 1}', '{"a": 1', "")] == [1.0, 0.0, 0.0]
    assert [parse_integrity(of(text, "a.toml")) for text in ("a = 1", "a = ")] == [1.0, 0.0]
    assert known(parse_integrity(of("no code", "a.txt"))) is None
    assert known(parse_integrity(of("[" * 200_000, "a.json"))) is None  # deeper than any parser goes
    assert known(parse_integrity(of("(" * 50_000 + ")" * 50_000, "a.py"))) in (0.0, None)
    assert parse_integrity(of("{ x }", "lines.c:7")) == 1.0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "x = 1\n" * 2**16),
        ("a.toml", "# a\n" * 2**17),
        ("a.json", f"[{'1,' * 2**21}1]"),
        ("a.toml", "a." * 16_000 + "a = 1"),
    ],
)
def test_what_would_cost_a_thousand_times_the_text_is_not_parsed(name, text, monkeypatch):
    monkeypatch.setitem(axes._PARSERS, name[1:], lambda text: pytest.fail("it was parsed"))
    assert known(parse_integrity(of(text, name))) is None


def test_brackets_in_strings_comments_and_the_preprocessor_are_none():
    good = "int f(char c) { /* } */ return c == '{' ? g(\"}{[\") : 1; } // )\n#define OPEN do { \\\n  (\n"
    assert brackets_close(good)
    assert not brackets_close(good + "}")
    assert not brackets_close("f(]")
    assert not brackets_close("{ (")
    assert brackets_close(good + "/* (")


@given(st.text('/*"`\\\n a', max_size=60))
@example("/* " * 20)
@example('"' + r"\"" * 20)
@example('"' + r"\"" * 20 + "\\")
def test_no_search_for_the_end_of_a_comment_or_string_is_in_vain(text):
    """So that the scan is linear: what was searched is not searched again from the next place where one might begin."""
    skipped = axes._NO_BRACKETS.split(text)
    assert not any(begin in part for part in skipped for begin in ("/*", '"', "`"))


def test_real_code_parses_and_cut_off_code_does_not():
    files = list(library().items())[::6]
    whole = [parse_integrity(of(text, origin)) for origin, text in files]
    assert whole.count(1.0) == len(files)
    cut = [parse_integrity(of(text[: len(text) // 2] + "\n(", origin)) for origin, text in files]
    assert cut.count(0.0) > 0.98 * len(files)


def test_repetition_makes_a_text_less_dense():
    text = next(iter(library().values()))
    once, often = density(of(text)), density(of(text * 20))
    assert 0 < often < once < 1
    assert density(of("x")) == 1.0


def test_thresholds_drop_by_axis_and_by_reason_and_unknown_is_no_score():
    axes = {"parse_integrity": {"least": 1.0}, "density": {"least": 0.2}}
    texts = {
        "good.py": "x = [a * b for a in y]\n",
        "bad.py": "x = (1\n",
        "prose.txt": "Some words.\n",
        "thin.txt": "so so " * 200,
    }
    result = prepared(texts, quality_axes=axes)
    assert result.dropped == {"bad.py": "low_parse_integrity", "thin.txt": "low_density"}
    assert result.details["bad.py"] == "0.000 of parse_integrity"
    strict = prepared(texts, quality_axes={"parse_integrity": {"unknown": "drop"}})
    assert strict.dropped == {"prose.txt": "no_parse_integrity", "thin.txt": "no_parse_integrity"}


def write_scored(path: Path) -> Path:
    lines = [
        {
            "text": f"document {number}: " + "some different words " * (1 + number % 3) + str(number),
            "scores": {"clarity": number % 11},
            "harm": 0.9 if number == 7 else 0.1,
            "builds": number % 4 != 0,
        }
        for number in range(60)
    ]
    del lines[3]["builds"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("workers", [1, 2])
def test_scores_that_documents_carry_are_thresholded_and_summed_up_per_source(tmp_path, workers):
    path = write_scored(tmp_path / "in.jsonl")
    axes = {
        "coherence": {"field": "scores.clarity", "scale": 10.0},
        "harm": {"field": "harm", "most": 0.5},
        "correctness": {"field": "builds", "least": 1.0},
    }
    sources = [{"name": "made", "kind": "jsonl", "path": str(path)}]
    manifest = build_data(small_recipe(sources, prepare={"quality_axes": axes}), tmp_path / "data", workers=workers)
    (source,) = manifest.sources
    assert source.dropped == {"high_harm": 1, "low_correctness": 15}
    kept = [json.loads(line) for n, line in enumerate(path.read_text().splitlines()) if n != 7 and (n % 4 or n == 3)]
    sizes = [len(line["text"].encode()) for line in kept]
    mean = sum(size * min(1.0, line["scores"]["clarity"] / 10) for size, line in zip(sizes, kept)) / sum(sizes)
    assert source.quality == {"coherence": pytest.approx(mean, abs=1e-6), "harm": 0.1, "correctness": 1.0}
    (step,) = (s for s in read_json(tmp_path / "data" / REPORT_FILE)["steps"] if s["step"] == "quality_axes")
    spread = step["facts"]["sources"]["made"]["coherence"]
    wanted = [0] * 10
    for line in kept:
        wanted[min(9, line["scores"]["clarity"])] += 1
    assert (spread["documents_by_tenth"], spread["unknown"]) == (wanted, 0)
    assert step["facts"]["sources"]["made"]["correctness"]["unknown"] == 1
    assert len(kept) == sum(wanted)


def test_a_field_that_no_document_has_is_told(tmp_path):
    path = write_scored(tmp_path / "in.jsonl")
    axes = {"harm": {"field": "harm", "most": 0.5}, "correctness": {"field": "build", "least": 1.0}}  # it is named builds
    told: list[dict] = []
    recipe = small_recipe([{"name": "made", "kind": "jsonl", "path": str(path)}], prepare={"quality_axes": axes})
    build_data(recipe, tmp_path / "data", lambda what, facts: told.append(facts) if what == "prepared" else None)
    (facts,) = told
    assert facts["silent"] == ["build"]
    assert "no document has the field build of its quality axis" in prepared_line(facts)


def test_an_axis_without_a_rule_needs_a_field_and_axes_that_are_off_change_no_identity():
    def recipe(**axes):
        return small_recipe([{"name": "a", "kind": "text-tree", "path": "in"}], prepare={"quality_axes": axes})

    assert check_recipe(recipe(density={}, parse_integrity={}, harm={"field": "harm"})) == []
    findings = check_recipe(recipe(harm={}, difficulty={}))
    assert [path for path, _ in findings] == [("data", "prepare", "quality_axes", name) for name in ("difficulty", "harm")]
    assert "field" in findings[0][1].way_out


def test_numbers_beside_the_text_are_taken_and_nothing_else():
    fields = {
        "text": "t",
        "a": 1,
        "b": True,
        "c": {"d": 0.5, "e": "x", "f": {"g": 1}},
        "big": 10**400,
        "nan": float("nan"),
        "l": [1],
    }
    assert numbers_of(fields) == {"a": 1.0, "b": 1.0, "c.d": 0.5}


def test_numbers_of_a_parquet_file_are_scores_too(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = [f"document {number} of several, with words" for number in range(40)]
    table = pyarrow.table({"text": texts, "score": [number / 40 for number in range(40)], "vector": [[1.0]] * 40})
    parquet.write_table(table, tmp_path / "in.parquet")
    sources = [{"name": "rows", "kind": "parquet", "path": str(tmp_path / "in.parquet")}]
    prepare = {"quality_axes": {"authority": {"field": "score", "least": 0.5}}}
    manifest = build_data(small_recipe(sources, vocabulary=270, prepare=prepare), tmp_path / "data")
    assert manifest.sources[0].dropped == {"low_authority": 20}

"""The preparation in a build: every document is counted once, the result is its own fixed point, and off it changes nothing."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from data_helpers import small_recipe, write_words
from hypothesis import example, given
from hypothesis import strategies as st
from prepare_helpers import prepared, some_files
from test_prepare_contamination import planted as planted_questions
from test_prepare_contamination import questions
from test_prepare_duplicates import altered, pieces_of_library
from test_prepare_sensitive import personal_of, plant, secrets_of

from headway.base.digests import is_sealed
from headway.base.errors import ConfigError
from headway.cli.data import prepared_line
from headway.data.build import build_data
from headway.data.inspect.verify import verify
from headway.data.manifest import REPORT_FILE, DataManifest
from headway.data.prepare.pipeline import pass_through
from headway.data.prepare.quality import Repeats
from headway.data.prepare.record import SourceRecord
from headway.data.prepare.steps import Piece, Step, Verdict
from headway.data.registry import write_registry
from headway.data.tokenizer import Tokenizer
from headway.recipe.checks import check_recipe

ALL_STEPS = {
    "text": {"unicode": "nfc", "control": "remove", "trailing_space": "remove"},
    "extensions": {"drop": [".md"]},
    "code": {},
    "languages": {"keep": ["en"]},
    "secrets": {"policy": "drop"},
    "personal": {"policy": "redact"},
    "quality": {},
    "repeats": {},
    "duplicates": {"compare": "folded"},
    "near_duplicates": {},
    "lines": {"copies": 5},
}


def spoiled() -> dict[str, str]:
    """Real files, and with them one or more of everything that a step is for; the key's head says which."""
    files = list(some_files(60, most=7_000).items())
    texts = dict(files)
    texts |= {f"duplicate/{number}.py": text for number, (_, text) in enumerate(files[:5])}
    texts |= {f"near_duplicate/{number}.py": altered(text, 0.01, number) for number, (_, text) in enumerate(files[5:10])}
    texts |= {f"extension/{number}.md": f"{text}\n# {number}" for number, (_, text) in enumerate(files[10:12])}
    texts |= {f"vendored/node_modules/{number}.js": f"{text}\n# {number}" for number, (_, text) in enumerate(files[12:14])}
    texts |= {f"secret/{origin}.py": text for origin, text in plant(secrets_of, 1)[0].items()}
    texts |= {f"personal/{origin}.py": text for origin, text in plant(personal_of, 1)[0].items()}
    texts |= {"repeated_ngram/1.py": files[20][1] + "so it goes on " * 40, "few_letters/1.txt": "=+* " * 5 + "--- ,,, ;;; " * 9}
    texts |= {f"contamination/{origin}.py": text for origin, text in list(planted_questions().items())[30:35]}
    notice = "This page was printed from the archive, see the terms of use there."
    return {origin: f"{text}\n{notice} \n" if number % 3 == 0 else text for number, (origin, text) in enumerate(texts.items())}


@pytest.fixture
def registry(tmp_path: Path) -> dict:
    write_registry(tmp_path / "registry.json", "tests", "1", {"sums": questions()})
    return {"contamination": {"registry": str(tmp_path / "registry.json")}}


def test_preparing_what_was_prepared_changes_nothing(registry):
    once = prepared(spoiled(), **ALL_STEPS, **registry)
    assert len(once.reasons()) >= 8
    assert once.found("lines")
    assert once.found("personal")
    twice = prepared(once.kept, **ALL_STEPS, **registry)
    assert twice.dropped == {}
    assert twice.kept == once.kept
    assert all(not record.changed for record in twice.record.steps)


def test_preparing_again_from_the_start_gives_the_same_to_the_bit(registry):
    one, two = (prepared(spoiled(), **ALL_STEPS, **registry) for _ in range(2))
    assert (one.kept, one.dropped, one.details) == (two.kept, two.dropped, two.details)
    assert one.record.inventory() == two.record.inventory()


def test_every_document_and_every_byte_is_counted_once(registry):
    texts = spoiled()
    result = prepared(texts, **ALL_STEPS, **registry)
    rows = result.record.inventory()
    assert rows[0].documents_before == len(texts)
    assert rows[0].bytes_before == sum(len(text.encode()) for text in texts.values())
    for before, after in itertools.pairwise(rows):
        assert (before.documents_after, before.bytes_after) == (after.documents_before, after.bytes_before)
    for row in rows:
        assert row.documents_before == row.documents_after + sum(row.dropped.values())
    assert rows[-1].documents_after == len(result.kept)
    assert rows[-1].bytes_after == sum(len(text.encode()) for text in result.kept.values())
    assert len(result.kept) + len(result.dropped) == len(texts)


def test_every_step_takes_linear_time_by_counted_operations(registry):
    counts = []
    for times in (1, 4, 16):
        texts = pieces_of_library(25 * times)
        steps = prepared(texts, **ALL_STEPS | {"secrets": {"policy": "redact"}}, **registry).steps.values()
        size = sum(map(len, texts.values()))
        counts.append({(step.name, what): number / size for step in steps for what, number in step.operations.items()})
    assert {name for name, _ in counts[0]} == {"repeats", "contamination", "near_duplicates", "lines"}  # others keep no table
    for what in counts[0].keys() - {("near_duplicates", "comparisons")}:
        values = [count[what] for count in counts]
        assert max(values) < 1.5 * min(values), (what, values)


def test_what_was_planted_for_a_step_is_left_out_by_that_step(registry):
    result = prepared(spoiled(), **ALL_STEPS, **registry)
    for reason in (
        "duplicate",
        "near_duplicate",
        "extension",
        "vendored",
        "secret",
        "repeated_ngram",
        "few_letters",
        "contamination",
    ):
        planted = [origin for origin in spoiled() if origin.startswith(f"{reason}/")]
        assert planted
        assert {result.dropped.get(origin) for origin in planted} <= {reason, "near_duplicate"}, reason
        assert any(result.dropped.get(origin) == reason for origin in planted), reason


PARTS = [
    "a\u0301",
    "\u00e1",
    "\x00",
    "\r",
    "\n",
    " ",
    "\t",
    "\ufeff",
    "\u2028",
    "x@y.org ",
    "+1-212-736-5000",
    "自由",
    "é" * 60,
    "word ",
    "-" * 50,
]
LINES = ["the first of some lines", "a line of other words", "some words of one more", "here are yet others"]
TEXTS = st.lists(
    st.one_of(
        st.text(max_size=40),
        st.lists(st.sampled_from(PARTS), max_size=30).map("".join),
        st.lists(st.sampled_from(LINES), max_size=4).map("\n".join),
    ),
    max_size=12,
)
LOOSE = {
    "text": {"unicode": "nfkc", "control": "remove", "trailing_space": "remove"},
    "secrets": {"policy": "redact"},
    "personal": {"policy": "redact"},
    "quality": {"least_characters": 0, "least_letters": 0.1},
    "repeats": {"times": 5},
    "duplicates": {"compare": "folded"},
    "near_duplicates": {"words": 1, "threshold": 0.6},
    "lines": {"copies": 1, "shortest": 3, "keep_conventions": False},
}


@example(["\ufeff\ufeffA"])
@example(["\x00\ufeffA"])
@given(TEXTS)
def test_any_texts_come_to_rest_and_are_counted(texts):
    named = {str(number): text for number, text in enumerate(texts) if text.removeprefix("\ufeff").strip()}
    once = prepared(named, **LOOSE)
    assert set(once.kept) | set(once.dropped) == set(named)
    assert "unstable" not in once.reasons()
    assert all(text.strip() for text in once.kept.values())
    last = once.record.inventory()[-1]
    assert (last.documents_after, last.bytes_after) == (len(once.kept), sum(len(t.encode()) for t in once.kept.values()))
    twice = prepared(once.kept, **LOOSE)
    assert (twice.kept, twice.dropped) == (once.kept, {})


class _Toggle(Step):
    name = "toggle"

    def check(self, piece: Piece) -> Verdict:
        return Verdict(piece.text + "x")


def test_a_document_that_never_comes_to_rest_is_left_out_and_counted():
    record = SourceRecord([("toggle", 1)])
    _, verdict = pass_through(Piece("a", "a", "s"), [_Toggle({})], record)
    assert verdict.dropped == "unstable"
    assert record.inventory()[0].dropped == {"unstable": 1}


class _OneLess(Step):
    name = "one_less"

    def check(self, piece: Piece) -> Verdict:
        return Verdict(piece.text.replace("x", "", 1))


class _Renames(Step):
    name = "renames"

    def check(self, piece: Piece) -> Verdict:
        return Verdict(piece.text.replace(self.settings["old"], self.settings["new"]))


def test_a_changed_document_passes_again_all_steps_up_to_the_one_that_changed_it():
    record = SourceRecord([("renames", 1), ("renames", 1), ("one_less", 1)])
    steps = [_Renames({"old": "b", "new": "a"}), _Renames({"old": "c", "new": "b"}), _OneLess({})]
    assert pass_through(Piece("xxxc", "o", "s"), steps, record)[0].text == "a"
    assert [row.changed for row in record.steps] == [1, 1, 3]


class _Sees(Step):
    name = "sees"

    def __init__(self, seen: list[str]):
        super().__init__({})
        self.seen = seen

    def check(self, piece: Piece) -> Verdict:
        self.seen.append(piece.text)
        return Verdict(piece.text)


def test_the_last_step_has_seen_what_is_kept():
    """Also where a pass of the first steps alone has changed it once more."""
    seen: list[str] = []
    record = SourceRecord([("one_less", 1), ("sees", 1)])
    assert pass_through(Piece("xxxa", "o", "s"), [_OneLess({}), _Sees(seen)], record)[0].text == "a"
    assert seen[-1] == "a"


# --- builds


def write_tree(root: Path, texts: dict[str, str]) -> Path:
    for origin, text in texts.items():
        path = root / origin
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def recipe_of(trees: dict[str, Path], prepare: dict | None, **without):
    sources = [{"name": n, "kind": "text-tree", "path": str(p), "without": without.get(n, [])} for n, p in trees.items()]
    return small_recipe(sources, **({"prepare": prepare} if prepare is not None else {}))


@pytest.fixture
def trees(tmp_path: Path) -> dict[str, Path]:
    texts = spoiled()
    first = {origin: text for number, (origin, text) in enumerate(texts.items()) if number % 2 == 0}
    return {
        "b": write_tree(tmp_path / "in-b", first | {"empty.py": " \n"}),
        "a": write_tree(tmp_path / "in-a", {origin: text for origin, text in texts.items() if origin not in first}),
    }


def test_a_build_counts_and_reports_what_it_left_out(trees, registry, tmp_path):
    found: list[tuple[str, dict]] = []
    recipe = recipe_of(trees, ALL_STEPS | registry)
    manifest = build_data(recipe, tmp_path / "data", lambda *what: found.append(what))
    told, gathered = ([facts for what, facts in found if what == wanted] for wanted in ("prepared", "documents"))
    for name, root in trees.items():
        source = DataManifest.load(tmp_path / "data").source(name)
        files = sum(path.is_file() for path in root.rglob("*"))
        assert source.documents + source.held_out.documents + sum(source.dropped.values()) == files
        steps = {row.step: row for row in source.preparation}
        assert source.preparation[0].documents_before == files - (name == "b")  # the empty one is the spool's
        assert source.preparation[-1].documents_after == source.documents + source.held_out.documents
        assert source.preparation[-1].bytes_after == source.bytes + source.held_out.bytes
        assert steps["secrets"].dropped["secret"] > 0
    assert manifest.source("b").dropped["empty"] == 1
    report = json.loads((tmp_path / "data" / REPORT_FILE).read_text())
    assert is_sealed(report)
    examples = report["sources"]["a"]["examples"]["secrets"]["secret"]
    assert 0 < len(examples) <= 5
    assert not any(secret in json.dumps(report) for seed in range(3) for secret in secrets_of(seed).values())
    (sums,) = next(step["facts"]["sets"] for step in report["steps"] if step["step"] == "contamination")
    assert sums["documents_removed"] == sum(s.dropped["contamination"] for s in manifest.sources) > 0
    assert [facts["source"] for facts in told] == ["a", "b"]
    assert {facts["source"]: facts["by_steps"] for facts in gathered} == {
        "a": manifest.source("a").dropped,
        "b": {reason: count for reason, count in manifest.source("b").dropped.items() if reason != "empty"},
    }
    line = prepared_line(told[0])
    assert line.startswith(f"- a: prepared, {told[0]['documents']} of {told[0]['documents_read']} documents")
    assert "secret" in line


def test_the_order_of_sources_in_the_recipe_does_not_change_what_is_kept(trees, registry, tmp_path):
    reverse = dict(reversed(trees.items()))
    one, two = (build_data(recipe_of(t, ALL_STEPS | registry), tmp_path / n) for n, t in (("one", trees), ("two", reverse)))
    assert one.source("a").dropped != {}
    for name in trees:
        for what in ("dropped", "preparation", "documents", "bytes"):
            assert getattr(one.source(name), what) == getattr(two.source(name), what)
    assert (tmp_path / "one" / REPORT_FILE).read_bytes() == (tmp_path / "two" / REPORT_FILE).read_bytes()


def test_building_twice_gives_the_same_and_is_reused(trees, tmp_path):
    one, two = (build_data(recipe_of(trees, ALL_STEPS), tmp_path / name) for name in ("one", "two"))
    assert one.digest() == two.digest()
    assert one.inputs_digest == two.inputs_digest
    told: list[str] = []
    build_data(recipe_of(trees, ALL_STEPS), tmp_path / "one", lambda what, facts: told.append(what))
    assert told[-1] == "reused"


def test_settings_and_versions_of_steps_are_part_of_the_builds_identity(tmp_path, monkeypatch):
    trees = {"a": write_words(tmp_path / "in", 40)}
    digests = [build_data(recipe_of(trees, None), tmp_path / "off").inputs_digest]
    for number, prepare in enumerate(({}, {"repeats": {}}, {"repeats": {"times": 33}})):
        digests.append(build_data(recipe_of(trees, prepare), tmp_path / str(number)).inputs_digest)
    digests.append(build_data(recipe_of(trees, {"repeats": {}}, a=["repeats"]), tmp_path / "without").inputs_digest)
    monkeypatch.setattr(Repeats, "version", 2)
    digests.append(build_data(recipe_of(trees, {"repeats": {}}), tmp_path / "version").inputs_digest)
    for number in (1, 2):
        write_registry(tmp_path / "r.json", "r", "1", {"s": questions()[:number]})
        prepare = {"contamination": {"registry": str(tmp_path / "r.json")}}
        digests.append(build_data(recipe_of(trees, prepare), tmp_path / f"registry-{number}").inputs_digest)
    assert len(set(digests)) == len(digests)


def test_without_preparation_the_build_is_what_it_was(tmp_path):
    """Literals of the build before there was a preparation. Change knowingly: other data for the same recipe."""
    manifest = build_data(recipe_of({"a": write_words(tmp_path / "in", 40)}, None), tmp_path / "data")
    assert manifest.inputs_digest.startswith("sha256:93b9b18b7743b11d")
    assert manifest.digest().startswith("sha256:b0c7adc5232015c0")
    assert manifest.source("a").preparation == ()
    assert not (tmp_path / "data" / REPORT_FILE).exists()


def test_a_manifest_from_before_the_preparation_is_read(tmp_path):
    build_data(recipe_of({"a": write_words(tmp_path / "in", 40)}, None), tmp_path / "data")
    path = tmp_path / "data" / "manifest.json"
    value = json.loads(path.read_text())
    del value["seal"]
    for source in value["sources"]:
        del source["preparation"]
    path.write_text(json.dumps(value))
    assert DataManifest.load(tmp_path / "data").source("a").preparation == ()


def test_repositories_are_joined_and_counted(tmp_path):
    texts = {
        f"repo{n % 3}/part{n}.txt": path.read_text() for n, path in enumerate(sorted(write_words(tmp_path / "w", 30).iterdir()))
    }
    root = write_tree(tmp_path / "in", texts)
    manifest = build_data(recipe_of({"a": root}, {"repositories": {"most": "2KiB"}}), tmp_path / "data")
    (source,) = manifest.sources
    row = source.preparation[-1]
    assert (row.step, row.documents_before) == ("repositories", 30)
    assert 3 < row.documents_after == 30 - row.joined < 30
    assert row.bytes_after == sum(len(text.encode()) for text in texts.values())
    tokenizer = Tokenizer.load(tmp_path / "data" / manifest.tokenizer.file, "<|document|>")
    assert tokenizer.vocabulary == 300


def test_a_source_does_without_a_step(tmp_path):
    texts = {f"{n}.txt": path.read_text() for n, path in enumerate(sorted(write_words(tmp_path / "w", 30).iterdir()))}
    texts |= {"loop.txt": "so it goes on " * 40}
    trees = {name: write_tree(tmp_path / name, {f"{name}-{o}": f"{name} {t}" for o, t in texts.items()}) for name in ("a", "b")}
    manifest = build_data(recipe_of(trees, {"repeats": {}}, b=["repeats"]), tmp_path / "data")
    assert manifest.source("a").dropped == {"repeated_ngram": 1}
    assert manifest.source("b").dropped == {}
    assert [row.step for row in manifest.source("b").preparation] == ["text"]


def test_a_step_that_nobody_has_cannot_be_left_out(tmp_path):
    findings = check_recipe(recipe_of({"a": tmp_path}, {"lines": {}}, a=["quality"]))
    assert [path for path, _ in findings] == [("data", "sources", 0, "without")]
    assert "[data.prepare.quality]" in findings[0][1].way_out


def test_a_registry_that_is_not_there_stops_the_build_with_one_message(tmp_path):
    prepare = {"contamination": {"registry": str(tmp_path / "nowhere.json")}}
    with pytest.raises(ConfigError, match=r"(?s)cannot read evaluation registry.*nowhere.json"):
        build_data(recipe_of({"a": write_words(tmp_path / "in", 40)}, prepare), tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_the_report_is_verified_with_the_rest(tmp_path):
    build_data(recipe_of({"a": write_words(tmp_path / "in", 40)}, {"text": {}}), tmp_path / "data")
    whole = verify(tmp_path / "data")
    assert (whole.damages, whole.unlisted) == ((), ())
    path = tmp_path / "data" / REPORT_FILE
    path.write_text(path.read_text().replace('"documents": 40', '"documents": 41'))
    assert [damage.file for damage in verify(tmp_path / "data").damages] == [REPORT_FILE]
    path.unlink()
    assert [damage.file for damage in verify(tmp_path / "data").damages] == [REPORT_FILE]

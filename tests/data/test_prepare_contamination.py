"""The evaluation registry, and documents that hold its examples."""

from __future__ import annotations

import json
import random

import pytest
from prepare_helpers import prepared, share, some_files

from headway.base.digests import digest_bytes
from headway.base.errors import ConfigError
from headway.data.registry import Example, load_registry, read_examples, write_registry


def questions() -> list[Example]:
    """Made up like tasks of arithmetic in words."""
    chance, found = random.Random(5), []
    names, things = ["Mara", "Jonas", "Ines", "Pavel", "Aiko"], ["apples", "marbles", "stamps", "shells", "tickets"]
    for number in range(60):
        a, b, c = chance.sample(range(3, 98), 3)
        who, what = chance.choice(names), chance.choice(things)
        text = (
            f"{who} has {a} {what} on Monday and finds {b} more behind the old library. After giving {c} of them to a neighbour, "
            f"how many {what} does {who} have left to bring to the market in the morning of day {number}?"
        )
        found.append(Example(f"q{number}", text, str(a + b - c)))
    return found


@pytest.fixture
def registry(tmp_path):
    write_registry(
        tmp_path / "eval" / "registry.json", "tests", "1", {"sums": questions(), "short": [Example("s1", "Yes or no?", "yes")]}
    )
    return tmp_path / "eval" / "registry.json"


def planted(every_other: int = 1) -> dict[str, str]:
    """Real files with a question in their middle: as it is, in capitals and without punctuation, over several lines."""
    texts = {}
    for number, (example, text) in enumerate(zip(questions(), some_files().values())):
        question = f"{example.text} {example.answer}"
        forms = [question, question.upper().replace(",", "").replace(".", " "), question.replace(" ", "\n    # ")]
        middle = text.find("\n", len(text) // 2)
        texts[f"planted/{example.id}"] = text[:middle] + f"\n{forms[number % 3]}\n" + text[middle:]
    return texts


def test_planted_examples_are_found_in_any_case_and_layout_and_real_text_passes(registry):
    texts = planted()
    result = prepared(some_files() | texts, contamination={"registry": str(registry)})
    found = set(result.dropped)
    assert share(len(found & set(texts)), len(texts)) >= 0.99  # recall; measured 1.00 of 60
    assert share(len(found & set(texts)), len(found)) >= 0.99  # precision; measured 1.00
    assert result.reasons() == {"contamination": 60}
    assert result.details["planted/q7"] == "1.00 of sums: q7"
    sets = result.steps["contamination"].facts()["sets"]
    assert [(s["name"], s["documents_removed"], s["too_short"]) for s in sets] == [("sums", 60, 0), ("short", 0, 1)]


def test_overlap_decides_how_much_of_an_example_must_be_there(registry):
    half = questions()[3].text.split()
    text = f"something before it {' '.join(half[: len(half) * 2 // 3])} and something else"
    for overlap, held in ((0.2, True), (0.9, False), (0.0, True)):
        result = prepared({"a": text}, contamination={"registry": str(registry), "overlap": overlap})
        assert bool(result.dropped) == held


def test_examples_shorter_than_an_ngram_are_looked_for_as_a_whole(tmp_path):
    write_registry(tmp_path / "r.json", "r", "1", {"s": [Example("one", "the cat sat on the mat near our door")]})
    settings = {"registry": str(tmp_path / "r.json"), "words": 13, "shortest": 8}
    assert prepared({"a": "He said: The cat sat on the mat, near our door."}, contamination=settings).dropped
    assert not prepared({"a": "The cat sat on the mat."}, contamination=settings).dropped


def test_the_registrys_digest_is_of_its_texts(registry, tmp_path):
    one = load_registry(registry)
    other = write_registry(
        tmp_path / "b" / "r.json", "other name", "1", {"sums": questions(), "short": [Example("s1", "Yes or no?", "yes")]}
    )
    assert other.digest() == one.digest()
    changed = write_registry(tmp_path / "c" / "r.json", "x", "1", {"sums": questions()[:-1]})
    assert changed.digest() != one.digest()
    assert [example.id for example in read_examples(registry, one.sets[0])] == [f"q{n}" for n in range(60)]


def test_a_set_that_was_changed_is_refused_by_name(registry):
    (registry.parent / "sums.jsonl").write_text('{"id": "q", "text": "other"}\n')
    with pytest.raises(ConfigError, match=r"sums.jsonl has the digest .*, the registry says") as refused:
        prepared({"a": "text"}, contamination={"registry": str(registry)})
    assert refused.value.problems[0].way_out.startswith("restore the file")


def test_a_number_of_examples_that_is_not_the_files_is_refused(registry):
    entry = json.loads(registry.read_text())
    entry["sets"][0]["examples"] = 61
    registry.write_text(json.dumps(entry))
    with pytest.raises(ConfigError, match=r"sums.jsonl holds 60 examples, the registry says 61"):
        list(read_examples(registry, load_registry(registry).sets[0]))


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        ("{}", "is not an evaluation registry of schema 1"),
        ("[1]", "is not an evaluation registry of schema 1"),
        ("{", "evaluation registry is damaged"),
        ('{"kind": "evaluation-registry", "schema_version": 1, "name": "x"}', "are missing"),
        ('{"kind": "evaluation-registry", "schema_version": 1, "name": "x", "version": "1", "sets": []}', "has sets none"),
    ],
)
def test_what_is_no_registry_is_one_clear_error(tmp_path, content, seen):
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(ConfigError, match=seen):
        load_registry(tmp_path / "r.json")


def test_a_registry_that_is_missing_and_a_line_that_is_no_example_are_named(registry, tmp_path):
    with pytest.raises(ConfigError, match="cannot read evaluation registry"):
        load_registry(tmp_path / "nowhere.json")
    for line in ("no json", '{"id": 3, "text": "x"}', "[]"):
        data = f'{{"id": "a", "text": "b"}}\n{line}\n'.encode()
        (registry.parent / "short.jsonl").write_bytes(data)
        entry = json.loads(registry.read_text())
        entry["sets"][1] |= {"digest": digest_bytes(data), "examples": 2}
        registry.write_text(json.dumps(entry))
        with pytest.raises(ConfigError, match=r"short.jsonl:2"):
            list(read_examples(registry, load_registry(registry).sets[1]))

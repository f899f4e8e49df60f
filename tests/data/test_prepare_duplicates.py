"""Duplicates, near-duplicates and lines of many documents: against definitions written out, and counted operations."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prepare_helpers import library, prepared, share, some_files

from headway.base.errors import EnvironmentFault
from headway.data.prepare.keys import KeyTable, Names, Numbers
from headway.data.prepare.near_duplicates import MOST_CANDIDATES, banding, permutations_of, signature
from headway.data.prepare.pipeline import make_steps
from headway.data.prepare.steps import Piece
from headway.recipe.preparation import NearDuplicates, Prepare

# --- the table


@given(st.lists(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**62)), max_size=50), max_size=20))
def test_the_table_is_a_dict(batches):
    table, wanted = KeyTable("test keys"), {}
    for batch in batches:
        distinct = dict(batch)
        table.put(np.array(list(distinct), np.uint64), np.array(list(distinct.values()), np.int64))
        wanted |= distinct
    asked = [*wanted, *(key ^ 1 for key in wanted)]
    assert table.get(np.array(asked, np.uint64)).tolist() == [wanted.get(key, -1) for key in asked]
    assert len(table) == len(wanted)


@given(st.lists(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 40), max_size=50, unique=True), max_size=20))
def test_the_table_counts(batches):
    table, wanted = KeyTable("test keys"), Counter()
    for batch in batches:
        table.count(np.array(batch, np.uint64))
        wanted.update(batch)
    assert table.get(np.array(list(wanted), np.uint64)).tolist() == list(wanted.values())
    assert len(table) == len(wanted)


def test_the_table_grows_in_linear_time_and_refuses_more_memory_than_allowed():
    probes = []
    for size in (4_000, 16_000, 64_000):
        table = KeyTable("test keys")
        for start in range(0, size, 100):
            table.put(np.arange(start, start + 100, dtype=np.uint64), np.arange(100))
        probes.append(table.probes / size)
        assert table.bytes <= 16 * max(1024, 4 * size)
    assert max(probes) < 6  # with all that doubling moved: the constant does not grow
    small = KeyTable("test keys", limit_bytes=64 * 1024)
    with pytest.raises(EnvironmentFault, match=r"the test keys need [\d,]+ bytes of temporary files"):
        small.put(np.arange(10_000, dtype=np.uint64), np.arange(10_000))


def test_names_and_numbers_come_back_in_any_order(tmp_path):
    names, numbers = Names(tmp_path), Numbers(tmp_path)
    wanted = [(f"source {n % 3}", f"é/{'x' * (n % 50)}{n}\ud800") for n in range(3_000)]
    for number, (source, origin) in enumerate(wanted):
        names.append(source, origin)
        numbers.extend(np.array([number, -number]))
        assert names[number // 2] == wanted[number // 2]  # also while it grows
    assert [names[number] for number in reversed(range(3_000))] == wanted[::-1]
    assert [numbers[at] for at in range(len(numbers))] == [value for number in range(3_000) for value in (number, -number)]
    names.close()


# --- exact


def test_equal_documents_are_found_as_written_or_folded():
    texts = {"a": "One text.\n", "b": "Another.\n", "c": "One text.\n", "d": "one  TEXT.\n"}
    result = prepared(texts, duplicates={})
    assert result.dropped == {"c": "duplicate"}
    assert result.details["c"] == "s: a"
    assert prepared(texts, duplicates={"compare": "folded"}).dropped == {"c": "duplicate", "d": "duplicate"}


def test_planted_copies_in_a_real_corpus_are_found_and_nothing_else():
    files = some_files()
    copies = {f"copy/{origin}": text for origin, text in list(files.items())[::4]}
    result = prepared(files | copies, duplicates={})
    assert set(result.dropped) == set(copies)


# --- near


def true_shingles(text: str, length: int = 5) -> set[tuple[str, ...]]:
    """Shingles as they are defined, from tuples of words and runs of signs."""
    found = [match[0] for match in re.finditer(r"[^\W]+|([^\w\s])\1*", text)]
    return {tuple(found[i : i + length]) for i in range(max(1, len(found) - length + 1))}


def true_jaccard(one: str, two: str) -> float:
    a, b = true_shingles(one), true_shingles(two)
    return len(a & b) / len(a | b)


def altered(text: str, share_of_words: float, seed: int) -> str:
    """``text`` with so many of its words replaced."""
    chance = random.Random(seed)
    return re.sub(r"\w+", lambda match: f"w{chance.randrange(10**9)}" if chance.random() < share_of_words else match[0], text)


def planted_versions() -> dict[str, tuple[str, float]]:
    """origin -> text, similarity to its original: from hardly changed to half rewritten."""
    found = {}
    for number, (origin, text) in enumerate(some_files(60).items()):
        for step, changed in enumerate((0.002, 0.01, 0.02, 0.04, 0.07, 0.15)):
            version = altered(text, changed, 100 * number + step)
            found[f"{origin}/{changed}"] = (version, true_jaccard(text, version))
    return found


def test_near_duplicates_are_found_at_every_similarity_above_the_threshold_and_none_below():
    versions, threshold = planted_versions(), 0.8
    similarities = [similarity for _, similarity in versions.values()]
    for low, high in itertools.pairwise((0.3, 0.5, 0.7, 0.8, 0.9, 1.0)):
        assert any(low < similarity <= high for similarity in similarities), (low, high)
    files = some_files(60)
    found = set()
    for origin, (text, _) in versions.items():  # one by one: versions are compared with their original only
        original = origin.rpartition("/")[0]
        result = prepared({original: files[original], origin: text}, near_duplicates={"threshold": threshold})
        found |= set(result.dropped)
    wanted = {origin for origin, (_, similarity) in versions.items() if similarity >= threshold}
    assert share(len(found & wanted), len(wanted)) >= 0.99  # recall; measured 1.00 of 212
    assert found <= wanted  # precision: 1, by the exact comparison


def test_on_a_real_corpus_the_result_is_that_of_comparing_all_pairs():
    files = {origin: text[:3_000] for origin, text in some_files(100).items()}
    texts = files | {f"new/{origin}": altered(text, 0.02, 1) for origin, text in list(files.items())[::3]}
    sets = {origin: true_shingles(text) for origin, text in texts.items()}
    kept: list[str] = []
    for origin, own in sets.items():
        if not any(len(own & sets[other]) >= 0.8 * len(own | sets[other]) for other in kept):
            kept.append(origin)
    result = prepared(texts, near_duplicates={})
    assert len(kept) < len(texts)
    wrong = set(kept) ^ set(result.kept)
    assert len(wrong) <= 0.01 * len(texts)


def test_no_chain_of_similar_documents_removes_one_that_is_unlike_all_that_is_kept():
    """a ~ b ~ c, a not ~ c: b goes, c stays."""
    a = [f"word{i}" for i in range(200)]
    texts = {
        "a": a,
        "b": a[15:] + [f"b{i}" for i in range(15)],
        "c": a[30:] + [f"b{i}" for i in range(15)] + [f"c{i}" for i in range(15)],
    }
    result = prepared({origin: " ".join(words) for origin, words in texts.items()}, near_duplicates={"threshold": 0.8})
    assert list(result.kept) == ["a", "c"]


def test_signatures_estimate_the_similarity():
    a = np.arange(3_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    keys = permutations_of(0, 1024)
    for overlap in (300, 1_500, 2_700):
        b = np.concatenate([a[:overlap], ~a[: 3_000 - overlap]])
        agree = float((signature(a, keys) == signature(b, keys)).mean())
        wanted = overlap / (6_000 - overlap)
        assert abs(agree - wanted) < 4 * np.sqrt(wanted * (1 - wanted) / 1024)


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 0.8, 0.9, 1.0])
def test_bands_propose_a_pair_at_the_threshold_as_promised(threshold):
    bands, rows = banding(256, threshold)
    assert bands * rows <= 256
    assert 1 - (1 - threshold**rows) ** bands >= 0.99
    assert 1 - (1 - 0.1**rows) ** bands < 0.2 or threshold == 0.3


def pieces_of_library(count: int, characters: int = 1_200) -> dict[str, str]:
    pieces = (f"{origin}:{at}" for origin, text in library().items() for at in range(0, len(text) - characters, characters))
    names = list(itertools.islice(pieces, count))
    return {name: library()[name.rpartition(":")[0]][int(name.rpartition(":")[2]) :][:characters] for name in names}


def operations(texts: dict[str, str]) -> dict[str, float]:
    """Per document."""
    step = prepared(texts, near_duplicates={}).steps["near_duplicates"]
    return {what: number / len(texts) for what, number in step.operations.items()} | {"probes": step._newest.probes / len(texts)}


def test_time_is_linear_by_counted_operations():
    counts = [operations(pieces_of_library(size)) for size in (100, 400, 1_600)]
    for what in ("hashes", "look-ups", "probes"):
        values = [count[what] for count in counts]
        assert max(values) < 1.5 * min(values), (what, values)
    assert all(count.get("comparisons", 0) <= 2 for count in counts)


def of_one_template(size: int) -> dict[str, str]:
    """Similar to each other by about 0.7: below the threshold, and in each other's bands."""
    template = [f"field{i} value" for i in range(60)]
    return {str(n): " ".join(template + [f"doc{n}x{i}" for i in range(18)]) for n in range(size)}


def test_time_stays_linear_where_all_documents_share_a_template():
    """Every document is a candidate for every other; look-ups and comparisons are bounded all the same."""
    few, many = (operations(of_one_template(size)) for size in (300, 1_200))
    assert few["comparisons"] > 10
    assert many["comparisons"] <= MOST_CANDIDATES
    assert many["look-ups"] < 2.5 * few["look-ups"]  # 4 times the documents, and without bounds 4 times the look-ups of each
    assert len(prepared(of_one_template(300), near_duplicates={}).kept) == 300


def test_candidates_are_all_kept_documents_that_share_a_band(tmp_path):
    texts = of_one_template(MOST_CANDIDATES)
    (step,) = (s for s in make_steps(Prepare(near_duplicates=NearDuplicates()), tmp_path) if s.name == "near_duplicates")
    known: list[set[tuple[int, int]]] = []
    for origin, text in texts.items():
        piece = Piece(text, origin, "s")
        assert step.check(piece).dropped == ""
        keys = step.measured(piece)[1]
        own = set(enumerate(keys.tolist()))
        assert set(step._candidates(step._newest.get(keys))) == {number for number, other in enumerate(known) if own & other}
        step.keep(piece)
        known.append(own)
    step.close()


# --- lines

NOTICE = "This page was printed from the archive, see the terms of use there."
LICENCE = "# Redistribution and use in source and binary forms, with or without changes"
IMPORT = "from somewhere.very_long_package_name import a_function_of_it"


def test_lines_of_many_documents_go_and_conventions_stay():
    files = list(some_files(40).items())
    texts = {}
    for origin, text in files:
        lines = text.split("\n")
        middle = len(lines) // 2
        texts[origin] = "\n".join([LICENCE, IMPORT, *lines[:middle], NOTICE, *lines[middle:]])
    result = prepared(texts, lines={"copies": 10})
    kept = list(result.kept.values())
    assert len(kept) == 40
    assert [NOTICE in text for text in kept] == [True] * 10 + [False] * 30  # recall 1
    assert all(text.startswith(f"{LICENCE}\n{IMPORT}\n") for text in kept)
    assert result.found("lines")["lines removed"] == 30  # precision 1: nothing else
    strict = prepared(texts, lines={"copies": 10, "keep_conventions": False})
    assert [IMPORT in text for text in strict.kept.values()] == [True] * 10 + [False] * 30


def test_repetition_inside_a_document_is_not_the_business_of_lines():
    assert not prepared({"a": f"{NOTICE}\n" * 50}, lines={"copies": 1}).found("lines")


def test_a_document_of_nothing_but_known_lines_is_left_out_and_counted():
    result = prepared({str(n): f"{NOTICE}\n{NOTICE} twice\n" for n in range(4)}, lines={"copies": 3})
    assert result.dropped == {"3": "repeated_lines_only"}

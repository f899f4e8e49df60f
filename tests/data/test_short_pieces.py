"""Text that a tokenizer is trained on: without pieces so long that training, quadratic in them, would not end."""

from __future__ import annotations

import json

import pytest
from data_helpers import small_recipe

from headway.data.build import build_data
from headway.data.manifest import DataManifest
from headway.data.vocabulary.splits import DIGITS, LONGEST_PIECE, WHITESPACE, Policy, ShortPieces


@pytest.mark.parametrize("digits", DIGITS)
@pytest.mark.parametrize("whitespace", WHITESPACE)
@pytest.mark.parametrize("one", ["-", "a", "[]", " ", "\u3000", "7", "\x1c", "\u4f60", "\n"])
def test_no_piece_is_longer(one, whitespace, digits):
    policy = Policy(digits, whitespace)
    short = ShortPieces([f"the cat {one * 3000} sat {one * 2000}{one * 1500} on"], policy)
    parts = list(short)
    pieces = [piece for part in parts for piece, _ in policy.pre_tokenizer().pre_tokenize_str(part)]
    assert max(map(len, pieces)) <= 3 * LONGEST_PIECE + 3  # letters for bytes
    assert "the cat" in "".join(parts)
    assert sum(map(len, parts)) + short.left_out == 6516 + 6500 * (len(one) - 1)


def test_a_text_without_a_long_piece_is_as_it_was():
    texts = ["a" * LONGEST_PIECE, "word, " * 5000, "\u4f60\u3002" * 5000, " " * LONGEST_PIECE + "x", "ab1-" * 5000, ""]
    short = ShortPieces(texts, Policy())
    assert "".join(short) == "".join(texts)
    assert short.left_out == 0


@pytest.mark.parametrize("run", ["-" * 100_000, "[" * 50_000 + "]" * 50_000])
def test_a_build_with_a_run_of_one_sign_ends_and_says_what_it_left_out(run, tmp_path):
    texts = [f"document {i}: the cat sat on the mat, {i * 7919} times" for i in range(60)]
    built = {}
    for name, more in (("with", [run]), ("without", ["-"])):
        (tmp_path / name).write_text("".join(json.dumps({"text": one}) + "\n" for one in texts + more * 20))
        recipe = small_recipe([{"name": "d", "kind": "jsonl", "path": str(tmp_path / name)}], vocabulary=300)
        build_data(recipe, tmp_path / f"data-{name}")
        built[name] = DataManifest.load(tmp_path / f"data-{name}").tokenizer
    assert built["with"].left_out["d"] % 50_000 == 0 < built["with"].left_out["d"]
    assert built["without"].left_out == {}

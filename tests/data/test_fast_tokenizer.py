"""tiktoken in place of tokenizers: the same ids on any text, or not used at all."""

from __future__ import annotations

import json
import random
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from data_helpers import small_recipe, write_words
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from headway.data import assemble
from headway.data.build import build_data
from headway.data.inspect.probes import ODD_TEXTS
from headway.data.tokenizer import Tokenizer, train_tokenizer
from headway.data.vocabulary import fast
from headway.data.vocabulary.fast import FastEncoder, NotProven, Proof, prove
from headway.data.vocabulary.splits import DIGITS, KNOWN, WHITESPACE, Policy, split_by

TOKEN = "<|document|>"
LIBRARY = Path(sysconfig.get_paths()["stdlib"])
TEXTS = [path.read_text(errors="replace")[:40_000] for path in sorted(LIBRARY.glob("*.py"))[:25]]
POLICIES = [Policy(digits, whitespace) for digits in DIGITS for whitespace in WHITESPACE]


def trained(policy: Policy = Policy(), vocabulary: int = 700) -> Tokenizer:  # noqa: B008 - frozen
    return train_tokenizer(TEXTS[:8], vocabulary=vocabulary, document_token=TOKEN, controls=["<|call|>"], policy=policy)


def plain_of(tokenizer: Tokenizer) -> dict:
    return json.loads(tokenizer._serialized)


def quick(tokenizer: Tokenizer) -> FastEncoder:
    """Without the comparison of the engines' classes, which is a test of its own."""
    plain = plain_of(tokenizer)
    fast._check_merges(plain)
    return FastEncoder(plain, Proof(fast._pattern(plain), ""))


@pytest.fixture(scope="module", params=POLICIES, ids=lambda policy: f"{policy.digits}-{policy.whitespace}")
def pair(request) -> tuple[Tokenizer, FastEncoder]:
    tokenizer = trained(request.param)
    return tokenizer, quick(tokenizer)


def test_real_and_odd_texts_have_the_same_ids(pair):
    tokenizer, encoder = pair
    texts = [*TEXTS, *ODD_TEXTS.values(), f"a {TOKEN} <|call|>{TOKEN}"]
    found = encoder.encode_all(texts)
    assert [ids.tolist() for ids in found] == [tokenizer.encode(text) for text in texts]
    assert all(tokenizer.decode(ids) == text for ids, text in zip(found, texts))


PIECES = [
    "  ",
    "\n",
    "\t",
    "\r\n",
    "1234567",
    "\u0661\u0662",
    "'s",
    "'LL",
    "the",
    "return",
    "\u00e9",
    "\u4f60",
    "_",
    "!!",
    "\u00a0",
    "\U0001f600",
]


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=20).map("".join))
@settings(max_examples=60, deadline=None)
def test_any_text_has_the_same_ids(pair, text):
    tokenizer, encoder = pair
    text = text.encode("utf-8", "ignore").decode()
    assert encoder.encode(text).tolist() == tokenizer.encode(text)


@pytest.mark.parametrize("name", KNOWN)
def test_known_patterns_have_the_same_ids(name):
    inner = tokenizers.Tokenizer.from_str(trained()._serialized.decode())
    inner.pre_tokenizer = split_by(KNOWN[name])
    tokenizer = Tokenizer(inner.to_str().encode(), TOKEN)
    encoder = quick(tokenizer)
    texts = [*TEXTS[:6], *ODD_TEXTS.values(), "it'S we'LL  1234\r\n\r\n /x", "DJANGO ŐRÜLT ǅ CamelCaseWORD"]
    assert [encoder.encode(text).tolist() for text in texts] == [tokenizer.encode(text) for text in texts]


def test_merges_in_any_order_have_the_same_ids_or_are_not_proven():
    """Vocabularies that no training gives: the condition must say which of them are alike."""
    proven, base = 0, plain_of(trained(vocabulary=258))
    for seed in range(400):
        dice = random.Random(seed)
        tokens = list("abc")
        merges: list[tuple[str, str]] = []
        for _ in range(dice.randint(1, 7)):
            pair = (dice.choice(tokens), dice.choice(tokens))
            if pair not in merges:
                merges.append(pair)
                tokens += [pair[0] + pair[1]] * (pair[0] + pair[1] not in tokens)
        if dice.random() < 0.5:
            dice.shuffle(merges)
        plain = json.loads(json.dumps(base))
        alphabet = [token for token in plain["model"]["vocab"] if len(token) == 1]
        vocabulary = {token: i for i, token in enumerate([*alphabet, *(t for t in tokens if len(t) > 1)])}
        extra = [] if dice.random() < 0.5 else ["".join(dice.choices("abc", k=dice.randint(2, 4)))]
        vocabulary |= {token: len(vocabulary) + i for i, token in enumerate(extra) if token not in vocabulary}
        plain["model"] |= {"vocab": vocabulary, "merges": merges, "ignore_merges": bool(extra)}
        plain["added_tokens"] = []
        inner = tokenizers.Tokenizer.from_str(json.dumps(plain))
        try:
            fast._check_merges(plain)
        except NotProven:
            continue
        proven += 1
        encoder = FastEncoder(plain, Proof(fast._pattern(plain), ""))
        for _ in range(60):
            text = "".join(dice.choices("abc", k=dice.randint(1, 14)))
            assert encoder.encode(text).tolist() == inner.encode(text).ids, (merges, extra, text)
    assert 40 < proven < 400


def test_the_proof_compares_the_engines_over_all_code_points():
    proof = prove(plain_of(trained(vocabulary=260)))
    assert proof.pattern == Policy().pattern
    assert len(proof.odd) < 100
    everything = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000 and chr(c) not in proof.odd)
    tokenizer = trained()
    assert FastEncoder(plain_of(tokenizer), proof).encode(everything).tolist() == tokenizer.encode(everything)


def test_a_code_point_on_which_engines_differ_goes_to_tokenizers(monkeypatch):
    monkeypatch.setattr(fast, "_compare", fast._compare.__wrapped__)  # nothing kept from before, nothing left behind
    monkeypatch.setattr(fast, "_of_class", lambda one, points: ("ab\u0378", "ab") if one == r"\p{L}" else ("", ""))
    proof = prove(plain_of(trained()))
    assert proof.odd == "\u0378"
    tokenizer = trained()
    assert FastEncoder(plain_of(tokenizer), proof).encode("a \u0378 b") is None
    tokenizer.use(proof)
    assert tokenizer.encode_batch(["a \u0378 b", "abc"]) == [tokenizer.encode("a \u0378 b"), tokenizer.encode("abc")]


def test_letters_of_another_case_are_odd_where_a_pattern_folds_case():
    assert set("\u017f") <= set(fast._odd(r"(?i:'s|'t)"))
    assert "\u00df" not in fast._odd(r"(?i:'s|'t)")
    assert "\u00df" in fast._odd(r"(?i:ss)")


def test_a_text_at_which_the_engine_gives_up_goes_to_tokenizers():
    tokenizer = trained()
    tokenizer.use(Proof(Policy().pattern, ""))
    text = "\n" * 1_100_000
    assert tokenizer._fast.encode(text) is None
    assert tokenizer.encode_arrays([text, "x"])[0].tolist() == tokenizer.encode(text)


def test_text_that_a_pattern_skips_goes_to_tokenizers():
    inner = tokenizers.Tokenizer.from_str(trained()._serialized.decode())
    inner.pre_tokenizer = split_by(r"\p{L}+|\p{N}+")
    tokenizer = Tokenizer(inner.to_str().encode(), TOKEN)
    encoder = quick(tokenizer)
    assert encoder.encode("abc").tolist() == tokenizer.encode("abc")
    assert encoder.encode("abc 12") is None


@pytest.mark.parametrize(
    "pattern",
    [r"^\p{L}+|\s", r"\p{N}{1,3}+", r"\p{L}+?|.", r"[a-z&&[^b]]+", r"(?<x>a)", r"\bword\b", r"(?i)a", r"a$", r"[[:alpha:]]"],
)
def test_constructs_that_engines_read_differently_are_not_taken(pattern):
    assert fast._not_understood(pattern)


@pytest.mark.parametrize("pattern", [*KNOWN.values(), *(policy.pattern for policy in POLICIES)])
def test_patterns_of_ours_are_taken(pattern):
    assert fast._not_understood(pattern) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda plain: plain["model"].update(dropout=0.1), "with dropout"),
        (lambda plain: plain.update(normalizer={"type": "NFC"}), "normalised"),
        (lambda plain: plain["added_tokens"][0].update(special=False), "searched for added tokens"),
        (lambda plain: plain["pre_tokenizer"].update(add_prefix_space=True), "other means"),
        (lambda plain: plain.update(pre_tokenizer=None), "not split"),
        (lambda plain: plain["model"]["merges"].reverse(), "merged to something else"),
        (lambda plain: plain["model"]["vocab"].pop("a"), "lacks bytes"),
        (lambda plain: plain["model"].update(ignore_merges=True), "control token"),
    ],
)
def test_what_differs_is_not_proven(change, words):
    plain = plain_of(trained())
    change(plain)
    with pytest.raises(NotProven, match=words):
        prove(plain)


def test_merges_of_one_token_that_stand_apart_are_not_proven():
    vocabulary = {letter: i for i, letter in enumerate(fast._alphabet())}
    vocabulary |= {"ab": 256, "bc": 257, "abc": 258}
    plain = {"model": {"type": "BPE", "vocab": vocabulary, "merges": [["a", "b"], ["ab", "c"], ["b", "c"], ["a", "bc"]]}}
    models.BPE(vocab=vocabulary, merges=[tuple(pair) for pair in plain["model"]["merges"]])
    with pytest.raises(NotProven, match="stand apart"):
        fast._check_merges(plain | {"added_tokens": []})


# --- in a build


def test_a_build_is_the_same_with_either(tmp_path, monkeypatch):
    write_words(tmp_path / "words", 60)
    recipe = small_recipe([{"name": "w", "kind": "text-tree", "path": str(tmp_path / "words")}], vocabulary=320)
    slow = build_data(recipe, tmp_path / "slow")
    used: list[int] = []
    encode_all = FastEncoder.encode_all
    monkeypatch.setattr(FastEncoder, "encode_all", lambda self, texts: used.append(len(texts)) or encode_all(self, texts))
    monkeypatch.setattr(assemble, "PROVEN_FROM_BYTES", 0)
    assert build_data(recipe, tmp_path / "fast", part_bytes=4_000).digest() == slow.digest()
    assert sum(used) == 60
    assert build_data(recipe, tmp_path / "fast-2", part_bytes=4_000, workers=2).digest() == slow.digest()


def test_what_is_not_proven_is_told_and_built_all_the_same(tmp_path, monkeypatch):
    write_words(tmp_path / "words", 30)
    recipe = small_recipe([{"name": "w", "kind": "text-tree", "path": str(tmp_path / "words")}], vocabulary=300)
    told: list[tuple[str, dict]] = []

    def refuse(self: Tokenizer) -> Proof:
        raise NotProven("for a reason")

    monkeypatch.setattr(assemble, "PROVEN_FROM_BYTES", 0)
    monkeypatch.setattr(Tokenizer, "prove", refuse)
    build_data(recipe, tmp_path / "data", lambda what, facts: told.append((what, facts)))
    assert ("encoder", {"why": "for a reason"}) in told


def test_arrays_are_uint32(tmp_path):
    tokenizer = trained()
    tokenizer.use(Proof(Policy().pattern, ""))
    assert {ids.dtype for ids in tokenizer.encode_arrays(["a", ""])} == {np.dtype("uint32")}

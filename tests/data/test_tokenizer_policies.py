"""What a token may hold of digits and white space, and on how much text it is trained."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tokenizers
from data_helpers import small_recipe, write_words
from hypothesis import given
from hypothesis import strategies as st

from headway.checkpoint.convert.served_tokenizer import write_tokenizer
from headway.data.build import build_data
from headway.data.manifest import DataManifest
from headway.data.seen import Seen
from headway.data.sources import Document
from headway.data.spool import AsRead, Shuffled, Spool
from headway.data.tokenizer import Tokenizer, train_tokenizer
from headway.data.vocabulary import obtain
from headway.data.vocabulary.letters import bytes_of
from headway.data.vocabulary.splits import Policy
from headway.recipe.schema import Recipe
from headway.recipe.schema import Tokenizer as Wanted
from headway.recipe.tokenizer_checks import check_tokenizer


def pieces(text: str, **keys: str) -> list[str]:
    split = Policy(**keys).pre_tokenizer().pre_tokenize_str(text)
    return [bytes_of(piece).decode() for piece, _ in split]


@pytest.mark.parametrize(
    ("number", "groups"),
    [
        ("1", "1"),
        ("12", "12"),
        ("123", "123"),
        ("1234", "1 234"),
        ("12345", "12 345"),
        ("123456", "123 456"),
        ("1234567", "1 234 567"),
    ],
)
def test_groups_of_three_are_counted_from_the_right(number, groups):
    assert pieces(f"n={number};", digits="groups-of-3") == ["n", "=", *groups.split(), ";"]


def test_very_long_numbers_are_grouped_in_linear_time_and_end_aligned():
    found = pieces("7" * 100_001, digits="groups-of-3")
    assert "".join(found) == "7" * 100_001
    assert [len(piece) for piece in found] == [3] * (len(found) - 21) + [2] + [3] * 20


def test_digits():
    assert pieces("in 2024.", digits="any") == ["in", " 2024", "."]
    assert pieces("in 2024.", digits="single") == ["in", " ", "2", "0", "2", "4", "."]


CODE = "if x:\n\n        return  1  \n\ty"


def test_white_space():
    assert pieces(CODE) == ["if", " x", ":", "\n\n       ", " return", " ", " 1", "  \n", "\t", "y"]
    assert pieces(CODE, whitespace="lines") == ["if", " x", ":", "\n\n", "       ", " return", " ", " 1", "  \n", "\t", "y"]
    assert pieces(CODE, whitespace="indentation") == [
        *["if", " x", ":", "\n\n", "        ", "return", " ", " 1", "  ", "\n", "\t", "y"]
    ]
    assert pieces("  a\n  b", whitespace="indentation") == ["  ", "a", "\n", "  ", "b"]
    assert pieces("a \n\n  b", whitespace="single") == ["a", " ", "\n", "\n", " ", " b"]


@given(st.text(alphabet="ab 12\n\t\r\u00a0_.'s\u4f60", max_size=30), st.sampled_from(["any", "single", "groups-of-3"]))
def test_no_policy_loses_text(text, digits):
    for whitespace in ("runs", "lines", "indentation", "single"):
        assert "".join(pieces(text, digits=digits, whitespace=whitespace)) == text


def test_tokens_hold_what_the_policy_says():
    texts = ["    x = 1234567\n        y = 7654321\n" * 20, "one two  three\n\n\n" * 20]
    for digits, longest in (("any", 7), ("single", 1), ("groups-of-3", 3)):
        tokenizer = train_tokenizer(texts, vocabulary=300, document_token="<|d|>", policy=Policy(digits, "single"))
        found = [tokenizer.decode([i]).strip() for i in range(300)]
        assert max(len(piece) for piece in found if piece.isdecimal()) == longest
        blanks = [tokenizer.decode([i]) for i in range(300)]
        assert max(len(piece) for piece in blanks if piece.isspace()) == 1


def test_the_default_is_what_it_was():
    tokenizer = train_tokenizer(["a b"], vocabulary=258, document_token="<|d|>")
    plain = json.loads(tokenizer._serialized)
    assert plain["pre_tokenizer"] == {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


# --- in a build


def recipe_with(root, **keys) -> Recipe:
    plain = small_recipe([{"name": "w", "kind": "text-tree", "path": str(root / "words")}], vocabulary=300)
    return plain.model_copy(update={"tokenizer": Wanted.model_validate({"vocabulary": 300, **keys})})


@pytest.mark.parametrize(
    "keys", [{"digits": "groups-of-3"}, {"whitespace": "indentation"}, {"digits": "single", "whitespace": "lines"}]
)
def test_tokens_of_a_whole_build_decode_to_the_documents(keys, tmp_path):
    write_words(tmp_path / "words", 40)
    (tmp_path / "words" / "code.txt").write_text(CODE + " 1234567 \u00e9\u4f60\U0001f600\n")
    manifest = build_data(recipe_with(tmp_path, **keys), tmp_path / "data")
    tokenizer = Tokenizer.load(tmp_path / "data" / "tokenizer.json", "<|document|>")
    found = []
    for tokens in (manifest.sources[0].training, manifest.sources[0].held_out):
        flat = np.concatenate([np.fromfile(tmp_path / "data" / shard.file, "<u2") for shard in tokens.shards])
        ends = np.fromfile(tmp_path / "data" / tokens.ends.file, "<u8").astype(int).tolist()
        found += [tokenizer.decode(flat[a + 1 : b]) for a, b in zip([0, *ends], ends)]
    assert sorted(found) == sorted(path.read_text() for path in (tmp_path / "words").iterdir())
    other = build_data(recipe_with(tmp_path), tmp_path / "other")
    assert other.inputs_digest != manifest.inputs_digest


def test_training_takes_a_sample_that_is_recorded(tmp_path, monkeypatch):
    write_words(tmp_path / "words", 60)
    whole = build_data(recipe_with(tmp_path), tmp_path / "whole")
    part = build_data(recipe_with(tmp_path, sample=6_000), tmp_path / "part")
    assert 5_000 < part.tokenizer.trained_on["w"] <= 6_000 < whole.tokenizer.trained_on["w"]
    assert part.tokenizer.digest != whole.tokenizer.digest
    assert DataManifest.load(tmp_path / "part").digest() == part.digest()
    again = build_data(recipe_with(tmp_path, sample=6_000), tmp_path / "again")
    assert again.digest() == part.digest()
    monkeypatch.setattr(obtain, "SAMPLE_BYTES", 6_000)
    assert build_data(recipe_with(tmp_path), tmp_path / "default").tokenizer.digest == part.tokenizer.digest


class Work:
    candidates = 3

    def __init__(self, root, name: str, sizes: list[int]):
        self.name = name
        spool, read = (
            Spool(root / name),
            AsRead(iter([Document(f"{i:04}" + "x" * (size - 4), "") for i, size in enumerate(sizes)])),
        )
        spool.fill(read, 0, Seen())
        self.spool = spool.seal(key="", where="", read=read, read_at="")
        self.order = Shuffled(len(sizes), 0, name)


def test_a_sample_is_shared_in_proportion_and_without_what_is_held_out(tmp_path):
    works = [Work(tmp_path, "small", [50] * 43), Work(tmp_path, "large", [50] * 403)]
    assert obtain.sample(works, 10**6) == [(43, 2_000), (403, 20_000)]
    assert obtain.sample(works, 2_200) == [(3 + 4, 200), (3 + 40, 2_000)]
    assert obtain.sample(works, 1) == [(4, 50), (4, 50)]  # a document each
    order = works[0].order.block(0, 43)
    assert list(obtain.texts(works[0], 7)) == list(works[0].spool.texts(order[3:7]))


def test_keys_that_change_nothing_are_refused():
    def keys(**given) -> list[str]:
        return [path[-1] for path, _ in check_tokenizer(Wanted.model_validate({"vocabulary": 300, **given}))]

    assert keys(path="t.json") == ["path"]
    assert keys(lossy=True, pattern="gpt2", special={"a": 1}) == ["pattern", "special", "lossy"]
    assert keys(kind="file", path="t.json", digits="single", sample="1MB") == ["digits", "sample"]
    assert keys(kind="file") == ["path"]
    assert keys(kind="file", path="t.json") == []


def test_an_export_encodes_as_the_run_did(tmp_path):
    texts = ["    x = 1234567\n        y = 7654321\n" * 20]
    tokenizer = train_tokenizer(texts, vocabulary=290, document_token="<|d|>", policy=Policy("groups-of-3", "indentation"))
    write_tokenizer(tokenizer, tmp_path)
    served = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert served.encode(CODE).ids == [tokenizer.document_token_id, *tokenizer.encode(CODE)]

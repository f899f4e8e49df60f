"""Fill-in-the-middle and reserved tokens: in the manifest by id, in no document, and nowhere where none were asked for."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from data_helpers import small_recipe, write_words

from headway.base.errors import ConfigError
from headway.data.build import build_data
from headway.data.manifest import DataManifest, TokenizerEntry
from headway.data.tokenizer import Tokenizer, train_tokenizer
from headway.recipe.schema import Recipe
from headway.recipe.tokenizer_checks import check_tokenizer

FIM = ("<|fim-prefix|>", "<|fim-suffix|>", "<|fim-middle|>")


def recipe_with(root, **keys) -> Recipe:
    write_words(root / "words", 30)
    (root / "words" / "spelled.txt").write_text(" ".join([*FIM, "<|call|>", "<|reserved-0|>", "<|document|>"]) * 3)
    plain = small_recipe([{"name": "w", "kind": "text-tree", "path": str(root / "words")}], vocabulary=300)
    tokenizer = type(plain.tokenizer).model_validate({"vocabulary": 300, **keys})
    return plain.model_copy(update={"tokenizer": tokenizer})


def test_ids_stand_in_the_manifest_and_no_document_holds_one(tmp_path):
    recipe = recipe_with(tmp_path, fim_tokens=FIM, reserved=["<|call|>"], reserved_count=2)
    build_data(recipe, tmp_path / "data")
    entry = DataManifest.load(tmp_path / "data").tokenizer
    assert (entry.document_token_id, entry.fim) == (0, (1, 2, 3))
    assert entry.reserved == {"<|call|>": 4, "<|reserved-0|>": 5, "<|reserved-1|>": 6}
    tokenizer = Tokenizer.load(tmp_path / "data" / entry.file, entry.document_token)
    assert tokenizer.controls == {"<|document|>": 0, **dict(zip(FIM, (1, 2, 3))), **entry.reserved}
    ids = np.concatenate([np.fromfile(path, "<u2") for path in (tmp_path / "data").rglob("shard-*.bin")])
    assert set(ids[ids < 7].tolist()) == {0}
    for token in tokenizer.controls:
        assert tokenizer.decode(tokenizer.encode(f"a{token} b")) == f"a{token} b"


def test_without_them_the_digest_is_that_of_before(tmp_path):
    manifest = build_data(recipe_with(tmp_path), tmp_path / "data")
    assert list(manifest.tokenizer.content()) == ["file", "digest", "vocabulary", "document_token", "document_token_id"]
    with_them = dataclasses.replace(manifest, tokenizer=dataclasses.replace(manifest.tokenizer, fim=(1, 2, 3)))
    assert with_them.digest() != manifest.digest()
    assert TokenizerEntry("f", "d", 300, "t", 0, {"r": 1}).content()["reserved"] == {"r": 1}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"fim_tokens": FIM[:2]}, "2 tokens for fill-in-the-middle"),
        ({"fim_tokens": (FIM[0], FIM[0], FIM[1])}, "is named 2 times"),
        ({"reserved": ["<|document|>"]}, "is named 2 times"),
        ({"reserved": [""]}, "one is empty"),
        ({"reserved_count": 100}, "does not hold 256 bytes and 101 control tokens"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, keys, words):
    ((path, problem),) = check_tokenizer(recipe_with(tmp_path, **keys).tokenizer)
    assert path[0] == "tokenizer"
    assert words in problem.seen


def test_a_control_token_that_is_ordinary_text_is_refused():
    with pytest.raises(ConfigError, match="control token 'the' also arises"):
        train_tokenizer(["the cat", "the mat"] * 9, vocabulary=300, document_token="<|d|>", controls=["the"])

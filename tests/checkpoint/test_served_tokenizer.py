"""The tokenizer beside exported weights: theirs gives the ids of ours behind the document token, and text comes back."""

from __future__ import annotations

import json

import pytest

from headway.checkpoint.convert.served_tokenizer import token_ids, write_tokenizer
from headway.checkpoint.convert.source import Source
from headway.data.tokenizer import train_tokenizer

TEXTS = ["def main():\n    return 1\n", "Ünïcode ☃ and\ttabs", "the cat sat on the mat " * 20]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, vocabulary=300, document_token="<|document|>")


def test_theirs_gives_our_ids_behind_the_document_token(tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    write_tokenizer(tokenizer, tmp_path)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for text in TEXTS:
        assert theirs(text)["input_ids"] == [tokenizer.document_token_id, *tokenizer.encode(text)]
        assert theirs.decode(tokenizer.encode(text)) == text
    assert (theirs.bos_token_id, theirs.eos_token_id) == (tokenizer.document_token_id,) * 2
    assert token_ids(tokenizer) == {"bos_token_id": theirs.bos_token_id, "eos_token_id": theirs.eos_token_id}
    spelled = theirs("a <|document|> b", split_special_tokens=True)["input_ids"]
    assert spelled == [tokenizer.document_token_id, *tokenizer.encode("a <|document|> b")]


def test_without_the_data_of_the_run_there_is_none(tmp_path):
    assert Source(path=tmp_path, format="headway").tokenizer(None) is None
    assert token_ids(None) == {"bos_token_id": None, "eos_token_id": None}


def test_the_file_keeps_our_alphabet(tokenizer, tmp_path):
    write_tokenizer(tokenizer, tmp_path)
    assert len(json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]) == tokenizer.vocabulary

"""The byte-level tokenizer: every text goes in and comes back, and no text produces the document token."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.base.errors import ConfigError, EnvironmentFault
from headway.data.tokenizer import Tokenizer, train_tokenizer

TEXTS = [
    "the cat sat on the mat, the cat sat",
    "def f(x):\n    return x + 1\n",
    "a document about <|document|> tokens: <|document|>",
] * 3
TOKEN = "<|document|>"


ATTACKS = [TOKEN, f"a{TOKEN}b", f" {TOKEN}", TOKEN * 5, f"{TOKEN}\n", "<|document|", "\u0120<|document|>"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, vocabulary=300, document_token=TOKEN)


@given(st.text(max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_text_comes_back(tokenizer, text):
    text = text.encode("utf-8", "ignore").decode()
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", ATTACKS)
def test_no_text_produces_the_document_token(tokenizer, text):
    for ids in (tokenizer.encode(text), tokenizer.encode_batch([text, text])[1]):
        assert tokenizer.document_token_id not in ids
        assert tokenizer.decode(ids) == text


@given(st.text(alphabet="<|>documentĠ \n", max_size=40))
@settings(max_examples=60, deadline=None)
def test_no_text_of_its_pieces_produces_the_document_token(tokenizer, text):
    assert tokenizer.document_token_id not in tokenizer.encode(text)


def test_the_document_token_is_kept_when_decoding(tokenizer):
    assert tokenizer.decode([tokenizer.document_token_id, *tokenizer.encode("cat")]) == f"{TOKEN}cat"


def test_batches_equal_single_texts(tokenizer):
    assert tokenizer.encode_batch(TEXTS) == [tokenizer.encode(text) for text in TEXTS]


def test_a_text_that_is_not_utf8_is_refused(tokenizer):
    with pytest.raises(ConfigError, match=r"is not UTF-8 at character 4"):
        tokenizer.encode("caf\udce9")


def test_save_and_load(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json", TOKEN)
    assert (loaded.digest, loaded.vocabulary, loaded.document_token_id) == (tokenizer.digest, 300, tokenizer.document_token_id)
    assert loaded.encode(f"the {TOKEN} cat") == tokenizer.encode(f"the {TOKEN} cat")


def test_missing_damaged_and_foreign_files(tokenizer, tmp_path):
    with pytest.raises(EnvironmentFault, match="No such file"):
        Tokenizer.load(tmp_path / "none.json", TOKEN)
    (tmp_path / "torn.json").write_text('{"version": "1.0", "mod')
    with pytest.raises(EnvironmentFault, match="tokenizer is damaged"):
        Tokenizer.load(tmp_path / "torn.json", TOKEN)
    tokenizer.save(tmp_path / "tokenizer.json")
    with pytest.raises(ConfigError, match="does not know the document token"):
        Tokenizer.load(tmp_path / "tokenizer.json", "<|other|>")


def test_a_document_token_that_is_ordinary_text_is_refused():
    for token in ("the", "a"):
        with pytest.raises(ConfigError, match="also arises from plain text"):
            train_tokenizer(TEXTS, vocabulary=300, document_token=token)


def test_vocabulary_below_the_bytes_is_refused():
    with pytest.raises(ConfigError, match="at least 257"):
        train_tokenizer(TEXTS, vocabulary=256, document_token=TOKEN)


def test_training_is_the_same_in_another_process_with_other_threads(tokenizer):
    code = (
        "from headway.data.tokenizer import train_tokenizer\n"
        f"print(train_tokenizer({TEXTS!r}, vocabulary=300, document_token={TOKEN!r}).digest)"
    )
    for threads in ("1", "3"):
        environment = os.environ | {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads}
        answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert answer.stdout.strip() == tokenizer.digest

"""Tokenizers that are brought: each kind through a whole build, with the ids of its own library, every document back."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiktoken
import tokenizers
from data_helpers import small_recipe
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from headway.base.errors import ConfigError, HeadwayError
from headway.data.build import build_data
from headway.data.manifest import DataManifest
from headway.data.tokenizer import Tokenizer
from headway.data.vocabulary import bring
from headway.data.vocabulary.letters import bytes_of
from headway.data.vocabulary.splits import KNOWN, Policy, split_by
from headway.recipe.schema import Recipe
from headway.recipe.schema import Tokenizer as Wanted
from headway.recipe.tokenizer_checks import check_tokenizer

FIM = ("<|fim-prefix|>", "<|fim-suffix|>", "<|fim-middle|>")
DOCUMENTS = [
    f"document {i}: the cat sat on the mat, {i * 7919} times\n\n    indented\tand  spaced\n" + "the quick brown fox " * (i % 5)
    for i in range(60)
] + [
    "  blanks first, \u00e9t\u00e9 e\u0301 \u4f60\u597d\u4e16\u754c \U0001f600 \x00 \u00a0 last  ",
    " one blank first",
    "<s> </s> <unk> <0x41> <|document|> <|fim-prefix|> spelled <s>",
    "\n\n\ttabs and line ends\n",
]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("documents") / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": one}) + "\n" for one in DOCUMENTS))
    return path


def byte_pairs(pre_tokenizer=None, special=("<|end|>",)) -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=[*special], initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(DOCUMENTS, trainer)
    return inner


def ranks() -> list[bytes]:
    plain = json.loads(byte_pairs(split_by(KNOWN["cl100k"]), special=()).to_str())
    tokens = sorted(plain["model"]["vocab"], key=plain["model"]["vocab"].get)
    return [bytes_of(token) for token in tokens]


def tokenizer_json(path: Path) -> dict:
    byte_pairs().save(str(path))
    return {"document_token": "<|end|>"}


def tokenizer_json_unigram(path: Path) -> dict:
    inner = tokenizers.Tokenizer(models.Unigram())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.UnigramTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, unk_token="[?]"
    )
    inner.train_from_iterator(DOCUMENTS, trainer)
    inner.save(str(path))
    return {}


def tiktoken_file(path: Path) -> dict:
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(ranks())))
    return {"pattern": "cl100k", "special": {"<|end|>": 345}, "document_token": "<|end|>"}


def tekken_file(path: Path) -> dict:
    tokens = ranks()
    vocab = [{"rank": r, "token_bytes": base64.b64encode(t).decode(), "token_str": None} for r, t in enumerate(tokens)]
    config = {"pattern": KNOWN["qwen2"], "default_vocab_size": 10 + len(tokens), "default_num_special_tokens": 10}
    special = [{"rank": 1, "token_str": "<s>", "is_control": True}]
    path.write_text(json.dumps({"config": config, "vocab": vocab, "special_tokens": special}))
    return {"document_token": "<s>"}


def sentencepiece_file(kind: str, **settings) -> Callable[[Path], dict]:
    def write(path: Path) -> dict:
        spm = pytest.importorskip("sentencepiece")
        model, lines = io.BytesIO(), (line for text in DOCUMENTS * 3 for line in text.split("\n") if line.strip("\0 "))
        keeps = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}
        spm.SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_writer=model,
            model_type=kind,
            vocab_size=400,
            hard_vocab_limit=False,
            minloglevel=2,
            **(keeps | settings),
        )
        path.write_bytes(model.getvalue())
        return {"document_token": "<s>"}

    return write


KINDS = {
    "tokenizer.json": tokenizer_json,
    "tokenizer.json unigram": tokenizer_json_unigram,
    "tiktoken": tiktoken_file,
    "tekken": tekken_file,
    "sentencepiece pairs": sentencepiece_file("bpe"),
    "sentencepiece unigram": sentencepiece_file("unigram"),
    "sentencepiece no blank first": sentencepiece_file("bpe", add_dummy_prefix=False, user_defined_symbols=["uic"]),
    "sentencepiece user": sentencepiece_file("unigram", user_defined_symbols=["cat"], control_symbols=["<call>"]),
}


def recipe_for(path: Path, text: Path, **keys) -> Recipe:
    plain = small_recipe([{"name": "d", "kind": "jsonl", "path": str(text)}], vocabulary=512)
    tokenizer = Wanted.model_validate({"kind": "file", "path": str(path), "vocabulary": 512, **keys})
    assert list(check_tokenizer(tokenizer)) == []
    return plain.model_copy(update={"tokenizer": tokenizer})


def documents_of(directory: Path) -> tuple[list[np.ndarray], Tokenizer]:
    """Ids of all documents, held out ones too, without their document token."""
    manifest = DataManifest.load(directory)
    tokenizer = Tokenizer.load(directory / manifest.tokenizer.file, manifest.tokenizer.document_token)
    found = []
    for tokens in (manifest.sources[0].training, manifest.sources[0].held_out):
        flat = np.concatenate([np.fromfile(directory / shard.file, "<u2") for shard in tokens.shards])
        ends = np.fromfile(directory / tokens.ends.file, "<u8").astype(int).tolist()
        assert (flat[[0, *ends[:-1]]] == manifest.tokenizer.document_token_id).all()
        found += [flat[a + 1 : b] for a, b in zip([0, *ends], ends)]
    return found, tokenizer


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_a_whole_build_decode_to_the_documents(kind, text, tmp_path):
    keys = KINDS[kind](tmp_path / "brought")
    build_data(recipe_for(tmp_path / "brought", text, fim_tokens=FIM, reserved_count=1, **keys), tmp_path / "data")
    ids, tokenizer = documents_of(tmp_path / "data")
    assert sorted(tokenizer.decode(one) for one in ids) == sorted(DOCUMENTS)
    sizes, blank_first = tokenizer.token_bytes(), "sentencepiece" in kind and "no blank" not in kind
    assert [int(sizes[one].sum()) - blank_first for one in ids] == [len(tokenizer.decode(one).encode()) for one in ids]
    controls = {*tokenizer.controls.values()}
    assert not controls & {i for one in ids for i in one.tolist()}
    entry = DataManifest.load(tmp_path / "data").tokenizer
    assert entry.vocabulary == 512 > max(controls)
    assert entry.fim == tuple(tokenizer.controls[token] for token in FIM)
    assert (entry.trained_on, len(entry.brought)) == ({}, len("sha256:") + 64)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("tokenizer.json")])
def test_ids_are_those_of_the_files_own_library(kind, tmp_path):
    keys = KINDS[kind](tmp_path / "brought")
    brought = bring.bring(Wanted.model_validate({"kind": "file", "path": str(tmp_path / "brought"), "vocabulary": 512, **keys}))
    assert brought.original is not None
    texts = [one for one in DOCUMENTS if "<s>" not in one]
    assert [brought.tokenizer.encode(one) for one in texts] == [list(brought.original(one)) for one in texts]
    assert bring.try_on(brought, DOCUMENTS, lossy=False) == 0


def test_a_tokenizer_json_gives_its_own_ids(text, tmp_path):
    tokenizer_json(tmp_path / "brought")
    build_data(recipe_for(tmp_path / "brought", text, document_token="<|end|>"), tmp_path / "data")
    inner = byte_pairs()
    assert sorted(one.tolist() for one in documents_of(tmp_path / "data")[0]) == sorted(
        inner.encode(one, add_special_tokens=False).ids for one in DOCUMENTS
    )


def test_ids_of_rank_files_stay(tmp_path):
    keys = tiktoken_file(tmp_path / "t")
    tokenizer = bring.bring(
        Wanted.model_validate({"kind": "file", "path": str(tmp_path / "t"), "vocabulary": 346, **keys})
    ).tokenizer
    own = tiktoken.Encoding(
        "own", pat_str=KNOWN["cl100k"], mergeable_ranks={t: r for r, t in enumerate(ranks())}, special_tokens={"<|end|>": 345}
    )
    assert tokenizer.controls == {"<|end|>": 345}
    assert [tokenizer.encode(one) for one in DOCUMENTS] == [own.encode(one, disallowed_special=()) for one in DOCUMENTS]


# --- what is refused


def lossy_sentencepiece(path: Path) -> dict:
    return sentencepiece_file("unigram", normalization_rule_name="nmt_nfkc", remove_extra_whitespaces=True)(path)


def test_a_tokenizer_that_loses_text_is_refused_unless_the_recipe_lets_it(text, tmp_path):
    keys = lossy_sentencepiece(tmp_path / "m")
    with pytest.raises(ConfigError, match=r"the tokenizer loses text: .*comes back as(.|\n)*tokenizer.lossy = true"):
        build_data(recipe_for(tmp_path / "m", text, **keys), tmp_path / "data")
    manifest = build_data(recipe_for(tmp_path / "m", text, lossy=True, **keys), tmp_path / "data")
    assert manifest.tokenizer.lossy
    _, tokenizer = documents_of(tmp_path / "data")
    assert tokenizer.decode(tokenizer.encode("a  \ufb01  b")) == "a fi b"


def test_text_that_is_lost_beyond_the_tried_sample_is_refused_while_building(tmp_path, monkeypatch):
    inner = byte_pairs()
    inner.normalizer = normalizers.Replace("\ufb01", "fi")
    inner.save(str(tmp_path / "t"))
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in [*DOCUMENTS, "a \ufb01 b"]))
    monkeypatch.setattr(bring, "try_on", lambda *args, **keys: 0)
    with pytest.raises(ConfigError, match="'a \ufb01 b' comes back as 'a fi b'"):
        build_data(recipe_for(tmp_path / "t", tmp_path / "d.jsonl", document_token="<|end|>"), tmp_path / "data")


@pytest.mark.parametrize(
    ("content", "keys", "words"),
    [
        (b"", {}, "no tokenizer that is known"),
        (b"\x0a\xff\xff\xff\xff\x0f", {}, "no tokenizer that is known"),
        (b"{", {}, "is no JSON"),
        (b"[" * 100_000, {}, "no tokenizer that is known"),
        (b'{"a":' * 100_000, {}, "is no JSON"),
        (b"{}", {}, "the model is missing"),
        (b'{"model": {"type": "WordPiece"}}', {}, "the model is WordPiece"),
        (b'{"model": {"type": "BPE"}}', {}, "is damaged"),
        (b'{"config": {}, "vocab": []}', {}, "not as tekken.json is"),
        (b"IQ== 0\nIg== 1\n", {}, "no tokenizer.pattern"),
        (b"IQ== 0\nIg== 1\n", {"pattern": "gpt2"}, "254 of the 256 bytes are missing"),
        (b"IQ== 0\nIg=\n", {"pattern": "gpt2"}, "line 2"),
        (b"{}", {"pattern": "gpt2"}, "is no .tiktoken file, and tokenizer.pattern is set"),
    ],
)
def test_files_that_are_no_tokenizers_have_one_clear_message(content, keys, words, tmp_path):
    (tmp_path / "brought").write_bytes(content)
    with pytest.raises(ConfigError, match=words.replace(".", r"\.")):
        bring.bring(Wanted.model_validate({"kind": "file", "path": str(tmp_path / "brought"), "vocabulary": 512, **keys}))


def test_what_does_not_fit_is_refused(tmp_path):
    def wanted(**keys) -> Wanted:
        return Wanted.model_validate({"kind": "file", "path": str(tmp_path / "t"), "vocabulary": 512, **keys})

    with pytest.raises(HeadwayError, match="No such file"):
        bring.bring(wanted())
    keys = tiktoken_file(tmp_path / "t")
    with pytest.raises(ConfigError, match=r"has 346 entries(.|\n)*vocabulary = 346 or more"):
        bring.bring(wanted(**keys | {"vocabulary": 345}))
    with pytest.raises(ConfigError, match="is also ordinary"):
        bring.bring(wanted(**keys | {"special": {"<|end|>": 3}}))
    with pytest.raises(ConfigError, match="with id 345 is also ordinary, or another's"):
        bring.bring(wanted(**keys | {"special": {"<|end|>": 345, "<|other|>": 345}}))
    with pytest.raises(ConfigError, match=r"\(unclosed' is no regular expression"):
        bring.bring(wanted(**keys | {"pattern": "(unclosed"}))
    with pytest.raises(ConfigError, match="control token 'cat' also arises"):
        bring.bring(wanted(**keys | {"document_token": "cat"}))


HUGE = 2_000_000_000


def test_an_id_beyond_the_vocabulary_is_refused_before_anything_of_its_size_is_made(tmp_path):
    def refused(name: str, **keys) -> None:
        with pytest.raises(ConfigError, match=r"tokenizer\.vocabulary = 512"):
            bring.bring(Wanted.model_validate({"kind": "file", "path": str(tmp_path / name), "vocabulary": 512, **keys}))

    tiktoken_file(tmp_path / "t")
    refused("t", pattern="cl100k", special={"<|end|>": HUGE})
    with open(tmp_path / "t", "ab") as file:
        file.write(base64.b64encode(b"never there") + b" %d\n" % HUGE)
    refused("t", pattern="cl100k")
    tekken_file(tmp_path / "k")
    plain = json.loads((tmp_path / "k").read_text())
    for change in (
        {"special_tokens": [{"rank": HUGE, "token_str": "<s>"}]},
        {"config": plain["config"] | {"default_vocab_size": HUGE + 300, "default_num_special_tokens": HUGE}},
    ):
        (tmp_path / "changed").write_text(json.dumps(plain | change))
        refused("changed", document_token="<s>")


def test_a_tokenizer_that_cannot_be_taken_is_found_before_sources_are_read(tmp_path):
    recipe = recipe_for(tmp_path / "t", tmp_path / "absent.jsonl", pattern="cl100k")
    with pytest.raises(HeadwayError, match="cannot read tokenizer"):
        build_data(recipe, tmp_path / "data")
    tiktoken_file(tmp_path / "t")
    small = recipe.model_copy(update={"tokenizer": recipe.tokenizer.model_copy(update={"vocabulary": 300})})
    with pytest.raises(ConfigError, match=r"tokenizer\.vocabulary = 300"):
        build_data(small, tmp_path / "data")


def test_a_truncated_model_never_crashes(tmp_path):
    sentencepiece_file("bpe")(tmp_path / "m")
    whole = (tmp_path / "m").read_bytes()
    refused = 0
    for size in range(0, len(whole), 997):
        (tmp_path / "cut").write_bytes(whole[:size])
        try:
            bring.bring(Wanted.model_validate({"kind": "file", "path": str(tmp_path / "cut"), "vocabulary": 512}))
        except ConfigError:
            refused += 1
    assert refused > 0, "and nothing else was raised"


def test_where_a_tokenizer_lies_is_in_no_digest_and_what_it_is_in_the_inputs(text, tmp_path):
    keys = tokenizer_json(tmp_path / "a")
    (tmp_path / "b").write_bytes((tmp_path / "a").read_bytes())
    first = build_data(recipe_for(tmp_path / "a", text, **keys), tmp_path / "data")
    assert build_data(recipe_for(tmp_path / "b", text, **keys), tmp_path / "data").digest() == first.digest()
    byte_pairs(Policy("single").pre_tokenizer()).save(str(tmp_path / "b"))
    with pytest.raises(ConfigError, match="other documents or settings"):
        build_data(recipe_for(tmp_path / "b", text, **keys), tmp_path / "data")


# --- damaged on purpose


def brought(path: Path, **keys) -> bring.Brought:
    return bring.bring(Wanted.model_validate({"kind": "file", "path": str(path), "vocabulary": 512, **keys}))


def changed(tmp_path: Path, **parts) -> Path:
    path = tmp_path / "changed"
    path.write_text(json.dumps(json.loads(byte_pairs().to_str()) | parts))
    return path


def test_dropout_is_taken_off(tmp_path):
    model = json.loads(byte_pairs().to_str())["model"]
    random = brought(changed(tmp_path, model=model | {"dropout": 0.5}), document_token="<|end|>").tokenizer
    assert random.digest == brought(changed(tmp_path), document_token="<|end|>").tokenizer.digest
    assert len({tuple(random.encode(DOCUMENTS[3])) for _ in range(20)}) == 1


def test_a_byte_order_mark_is_no_matter(tmp_path):
    path = changed(tmp_path)
    plain = brought(path, document_token="<|end|>").tokenizer.digest
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert brought(path, document_token="<|end|>").tokenizer.digest == plain


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"normalizer": "x"}, "changed: normalizer is not an object"),
        ({"normalizer": ["x"]}, "changed: normalizer is not an object"),
        (
            {"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []},
            "changed is damaged: its vocabulary is empty",
        ),
        ({"model": {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]]}, "added_tokens": []}, "changed fails on a text"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"}}, "changed fails on a text"),  # a panic
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "ABAAAP" + "/" * 6000}}, "changed is damaged"),
    ],
)
def test_what_the_library_cannot_read_has_one_message_that_names_the_file(parts, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        brought(changed(tmp_path, **parts))


def test_an_empty_row_of_splits_is_none(tmp_path):
    empty = changed(tmp_path, pre_tokenizer={"type": "Sequence", "pretokenizers": []})
    assert brought(empty, document_token="<|end|>").tokenizer.digest == (
        brought(changed(tmp_path, pre_tokenizer=None), document_token="<|end|>").tokenizer.digest
    )


def test_what_ends_the_process_is_no_fault_of_a_file(monkeypatch, tmp_path):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(bring, "_convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        brought(changed(tmp_path))


@pytest.mark.parametrize("config", [{"default_num_special_tokens": -4}, {"default_vocab_size": float("inf")}])
def test_sizes_of_a_tekken_file_that_are_none(config, tmp_path):
    tekken_file(tmp_path / "k")
    plain = json.loads((tmp_path / "k").read_text())
    (tmp_path / "k").write_text(json.dumps(plain | {"config": plain["config"] | config}))
    with pytest.raises(ConfigError, match=r"k is not as tekken\.json is"):
        brought(tmp_path / "k", document_token="<s>")


def test_ids_far_above_the_number_of_tokens_are_refused_before_the_holes_are_filled(tmp_path):
    keys = tiktoken_file(tmp_path / "t")
    with open(tmp_path / "t", "ab") as file:
        file.write(base64.b64encode(b"never there") + b" %d\n" % HUGE)
    with pytest.raises(ConfigError, match=r"t: 2,000,000,001 ids for"):
        brought(tmp_path / "t", **keys | {"vocabulary": 2**31})


# message 1 {field}: pieces, trainer and normaliser with fields of another wire type
@pytest.mark.parametrize("field", [b"\x08\x01", b"\x10\x01", b"\x0a\x02\x08\x01", b"\x0a\x02\x10\x01", b"\x1a\x02\x10\x01"])
def test_a_model_with_a_field_of_another_type_is_none(field, tmp_path):
    sentencepiece_file("bpe")(tmp_path / "m")
    (tmp_path / "m").write_bytes((tmp_path / "m").read_bytes() + field)
    with pytest.raises(ConfigError, match="m is no tokenizer that is known"):
        brought(tmp_path / "m")


def test_unknown_characters_are_lost_and_no_control_token(text, tmp_path):
    keys = sentencepiece_file("unigram", byte_fallback=False)(tmp_path / "m")
    with pytest.raises(ConfigError, match=r"characters that it does not know become '<unk>' and are lost, as in '\\n<unk>'"):
        brought(tmp_path / "m", **keys)
    build_data(recipe_for(tmp_path / "m", text, lossy=True, **keys), tmp_path / "data")
    ids, tokenizer = documents_of(tmp_path / "data")
    assert any(tokenizer.unknown_id in one for one in ids)
    with pytest.raises(ConfigError, match="produces the control token '<unk>'"):
        brought(tmp_path / "m", lossy=True, document_token="<unk>")

"""The audit of a tokenizer: against counts made one by one, and with every fault that it is there to find."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from data_helpers import small_recipe, write_token_data, write_words

from headway.base.errors import EnvironmentFault
from headway.cli.main import run_guarded
from headway.data.build import build_data
from headway.data.inspect import probes
from headway.data.inspect.audit import audit, coverage, script_of
from headway.data.manifest import DataManifest
from headway.data.tokenizer import Tokenizer, train_tokenizer

CYRILLIC = "\u043f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440 "


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("audit")
    write_words(root / "words", 60)
    lines = [{"text": f"{i}: {CYRILLIC * (i % 4)}def f_{i}():\n    return\n\tx\n\n        y"} for i in range(80)]
    (root / "mixed.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    sources = [
        {"name": "words", "kind": "text-tree", "path": str(root / "words"), "licence": "MIT"},
        {"name": "mixed", "kind": "jsonl", "path": str(root / "mixed.jsonl"), "licence": "MIT"},
    ]
    build_data(small_recipe(sources, vocabulary=320), root / "data", shard_bytes=2_048)
    return root / "data"


def texts_of(directory: Path, number: int) -> tuple[list[str], np.ndarray, Tokenizer]:
    """The source's documents and all its tokens, read by hand."""
    manifest = DataManifest.load(directory)
    entry = manifest.sources[number]
    tokenizer = Tokenizer.load(directory / "tokenizer.json", manifest.tokenizer.document_token)
    flat = np.concatenate([np.fromfile(directory / shard.file, "<u2") for shard in entry.shards])
    ends = np.fromfile(directory / entry.ends.file, "<u8").astype(int)
    return [tokenizer.decode(flat[a + 1 : b]) for a, b in zip([0, *ends], ends)], flat, tokenizer


@pytest.mark.parametrize("number", [0, 1])
def test_figures_of_a_source_are_those_of_its_documents(data, number):
    source = audit(data).sources[number]
    texts, flat, tokenizer = texts_of(data, number)
    assert source.counts.tolist() == [int((flat == i).sum()) for i in range(320)]
    assert source.bytes_per_token == pytest.approx(sum(len(t.encode()) for t in texts) / (len(flat) - len(texts)))
    sample = source.sample
    assert sample.documents == len(texts)
    assert sample.tokens == len(flat) - len(texts)
    assert sample.characters == sum(map(len, texts))
    assert sample.words == sum(len(text.split()) for text in texts)
    assert sample.lines == sum(len(text.splitlines()) for text in texts)
    heads = [line[: len(line) - len(line.lstrip(" \t"))] for text in texts for line in text.split("\n")]
    assert sample.indentation_bytes == sum(map(len, heads))
    white = sum(tokenizer.decode([i]).isspace() for i in flat.tolist() if i != tokenizer.document_token_id)
    assert source.whitespace_share == pytest.approx(white / len(flat))
    assert sample.tokens_per_word == pytest.approx(sample.tokens / sample.words)
    assert source.document_tokens_per_word.mean() == pytest.approx(
        np.mean([len(tokenizer.encode(text)) / len(text.split()) for text in texts])
    )


def test_documents_are_grouped_by_writing_system(data):
    words, mixed = audit(data).sources
    assert set(words.by_script) == {"Latin"}
    assert set(mixed.by_script) == {"Latin", "Cyrillic"}
    assert sum(m.documents for m in mixed.by_script.values()) == mixed.sample.documents
    assert mixed.by_script["Cyrillic"].bytes > mixed.by_script["Cyrillic"].characters


def test_sound_data_has_no_findings(data):
    found = audit(data)
    assert found.findings() == []
    assert found.control_counts == {"<|document|>": sum(source.documents for source in found.sources)}
    assert all(trip.returned for trip in found.round_trips)


def test_a_sample_is_whole_documents_and_a_long_one_is_cut(data, tmp_path):
    found = audit(data, sample_tokens=700).sources[0]
    assert 1 < found.sample.documents < found.documents
    assert found.sample.tokens + found.sample.documents <= 700
    write_token_data(tmp_path, [[[0, *range(1, 200)], [0, 5]]])
    (source,) = audit(tmp_path, sample_tokens=50).sources
    assert (source.sample.documents, source.encoded_otherwise) == (1, 0)


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("plain words", "Latin"),
        ("\u05e9\u05dc\u05d5\u05dd a", "Hebrew"),
        ("\u4f60\u597d\u4e16\u754c", "Han"),
        ("123 !?\n", "no letters"),
        ("", "no letters"),
    ],
)
def test_writing_systems(text, script):
    assert script_of(text) == script


def test_coverage_of_a_vocabulary():
    counts = np.array([50, 0, 600, 300, 80, 12, 5, 3, 0])  # the first is a control token
    found = coverage(counts, {0})
    assert (found.entries, found.used, found.never, found.rare) == (8, 6, 2, 2)
    assert found.unused == (1, 8)
    assert found.rarest_half_share == pytest.approx((5 + 3) / 1_000)
    assert found.entries_for == {50: 1, 90: 2, 99: 4}
    assert coverage(np.zeros(3, np.int64), set()).rarest_half_share == 0.0


def test_whitespace_runs_are_those_of_the_tokenizer(data):
    found, tokenizer = audit(data), texts_of(data, 0)[2]
    assert found.whitespace["spaces"] == tuple(len(tokenizer.encode(" " * n)) for n in probes.RUNS)
    assert found.longest_runs["spaces"] == max(len(t) for i in range(320) if not (t := tokenizer.decode([i])).strip(" ") and t)


# --- faults


def test_text_that_produces_a_control_token_is_found(data, monkeypatch):
    """As a tokenizer of another library would do that parses control tokens out of text."""
    plain = tokenizers.Tokenizer.from_file(str(data / "tokenizer.json"))
    monkeypatch.setattr(
        Tokenizer, "encode", lambda self, text: plain.encode(text.replace("\ud800", ""), add_special_tokens=False).ids
    )
    first, second = audit(data).findings()
    assert first == "lone surrogates are encoded, though they are no text"
    assert second.startswith("control token <|document|>: ")


def test_text_that_does_not_come_back_is_found(data, monkeypatch):
    decode = Tokenizer.decode
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids: decode(self, ids).replace("\r\n", "\n"))
    hit = [name for name, text in probes.ODD_TEXTS.items() if "\r\n" in text]
    assert hit
    assert audit(data).findings() == [f"round trip: {name}: the text does not come back" for name in hit]


def test_a_document_token_within_a_document_is_found(tmp_path):
    write_token_data(tmp_path, [[[0, 5, 6], [0, 7, 0, 8]]])
    assert "document token: 3 in the training tokens, and 2 documents" in audit(tmp_path).findings()


def test_a_control_token_in_the_data_is_found(data, tmp_path):
    write_token_data(tmp_path, [[[0, 5, 6], [0, 7, 8, 1]]])
    tokenizer = train_tokenizer(["tokens"], vocabulary=258, document_token="<|document|>", controls=["<|fim|>"])
    tokenizer.save(tmp_path / "tokenizer.json")
    manifest = DataManifest.load(tmp_path)
    dataclasses.replace(manifest, tokenizer=dataclasses.replace(manifest.tokenizer, digest=tokenizer.digest)).save(tmp_path)
    assert "control token <|fim|>: 1 in the training tokens, where a build places none" in audit(tmp_path).findings()


def test_padding_is_no_part_of_the_coverage_and_lossy_is_no_finding(data, tmp_path, monkeypatch):
    copy = Path(shutil.copytree(data, tmp_path / "data"))
    manifest = DataManifest.load(copy)
    dataclasses.replace(manifest, tokenizer=dataclasses.replace(manifest.tokenizer, vocabulary=384, lossy=True)).save(copy)
    decode = Tokenizer.decode
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids: decode(self, ids).replace("\r\n", "\n"))
    found = audit(copy)
    assert (found.padding, found.coverage.entries) == (64, 319)
    assert found.findings() == []


def test_numbers_cost_what_the_tokenizer_makes_of_them(data):
    found, tokenizer = audit(data), texts_of(data, 0)[2]
    one = [len(tokenizer.encode(f"n={number[:4]}")) - len(tokenizer.encode("n=")) for number in probes._NUMBERS]
    assert (found.numbers["least"][3], found.numbers["most"][3]) == (min(one), max(one))
    share = sum(tokenizer.decode([i]).strip(" ").isdecimal() for i in texts_of(data, 0)[1].tolist()) / len(texts_of(data, 0)[1])
    assert found.sources[0].digit_share == pytest.approx(share)


def test_tokens_beyond_the_vocabulary_are_found(tmp_path):
    write_token_data(tmp_path, [[[0, 5, 300], [0, 7, 60_000]]])
    assert "source0: 2 tokens are beyond the vocabulary" in audit(tmp_path).findings()


def test_ids_that_the_tokenizer_would_not_choose_are_found(data, tmp_path):
    """The words of a document spelled letter by letter: they decode to the text, and are not what is learned elsewhere."""
    texts, _, tokenizer = texts_of(data, 0)
    letters = [i for character in texts[0] for i in tokenizer.encode(character)]
    assert tokenizer.decode(letters) == texts[0]
    ids = [[0, *tokenizer.encode(texts[1])], [0, *letters]]
    write_token_data(tmp_path, [ids])
    manifest = DataManifest.load(tmp_path)
    shutil.copy(data / "tokenizer.json", tmp_path / "tokenizer.json")
    dataclasses.replace(manifest, tokenizer=DataManifest.load(data).tokenizer).save(tmp_path)
    assert audit(tmp_path).findings() == ["source0: 1 of 2 sampled documents are encoded to other ids than those that are stored"]


def test_damaged_data_is_refused(data, tmp_path):
    copy = Path(shutil.copytree(data, tmp_path / "data"))
    shard = next(copy.glob("00-words/shard-*.bin"))
    content = bytearray(shard.read_bytes())
    content[9] ^= 1
    shard.write_bytes(content)
    with pytest.raises(EnvironmentFault, match="shard-0000"):
        audit(copy)


# --- the verb


def test_the_verb_tells_and_draws(data, tmp_path, capsys):
    assert run_guarded(["data", "audit", str(data), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    for words in (
        "Fertility",
        "Cyrillic",
        "tokens for a run of",
        "tokens for a number of digits",
        "never used",
        "29 of 29 texts",
        "nothing is wrong",
    ):
        assert words in shown
    names = {"bytes-per-token", "digits", "fertility", "vocabulary", "whitespace"}
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} == names
    for name in names:
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n")
    written = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert run_guarded(["data", "audit", str(data), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts | {"files": []} == written | {"files": []}
    assert facts["vocabulary"]["used"] + facts["vocabulary"]["never_used"] == facts["vocabulary"]["entries"] == 319
    assert facts["findings"] == []


def test_findings_are_told_and_exit_1(tmp_path, capsys):
    write_token_data(tmp_path / "data", [[[0, 5, 6], [0, 7, 0, 8]]])
    assert run_guarded(["data", "audit", str(tmp_path / "data"), "--out", str(tmp_path / "out")]) == 1
    assert "FOUND  document token: 3" in capsys.readouterr().out


def test_mistakes_have_a_clear_message(data, tmp_path, capsys):
    assert run_guarded(["data", "audit", str(tmp_path)]) == 2
    assert "is no data directory" in capsys.readouterr().err
    assert run_guarded(["data", "audit", str(data), "--sample", "0"]) == 2
    assert "--sample 0" in capsys.readouterr().err

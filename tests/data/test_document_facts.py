"""Where every document is from: kept through preparation, shuffle, split and kills, and read back by its number."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from data_helpers import small_recipe, write_words

from headway.base.errors import EnvironmentFault
from headway.base.times import iso_time, seconds_of
from headway.cli.data import stage_line
from headway.cli.main import run_guarded
from headway.cli.output import print_json_line, say
from headway.data.build import build_data
from headway.data.facts import FactLines, Table
from headway.data.inspect.audit import audit
from headway.data.inspect.diff import compare, open_side
from headway.data.inspect.verify import verify
from headway.data.manifest import DataManifest
from headway.data.prepare.code import joined
from headway.data.prepare.steps import Piece
from headway.data.reader import TokenReader
from headway.data.tokenizer import Tokenizer

SYLLABLES = ["ka", "to", "mi", "ren", "sol", "vei", "bä", "nu", "自由"]
RECIPE = """
kind = "recipe"
name = "small"
tokenizer = {{ vocabulary = 300 }}
model = {{ layers = 1, width = 8, heads = 1 }}
optimizer = {{ peak_rate = 1e-3 }}
evaluation = {{ every = 200, tokens_per_source = 64 }}
[data]
held_out = 500
[[data.sources]]
name = "a"
kind = "jsonl"
path = "{path}"
[[stages]]
name = "main"
tokens = 1024
batch = 128
rate = {{ }}
mixture = {{ a = 1.0 }}
{stage}
"""
PREPARE = {"text": {}, "personal": {"policy": "redact"}, "duplicates": {}}


def write_facts(path: Path, documents: int, seed: int = 1, **changed: str) -> Path:
    """A document a line with facts of all kinds; every seventh has none."""
    generator = random.Random(seed)
    lines = []
    for number in range(documents):
        words = ["".join(generator.choices(SYLLABLES, k=generator.randint(1, 3))) for _ in range(40)]
        line = {"text": f"<{number}> {' '.join(words)}"}
        if number % 7:
            day = f"{generator.randrange(2010, 2024)}-{generator.randrange(1, 13):02d}-{generator.randrange(1, 29):02d}"
            line |= {"repo": f"owner/name-{generator.randrange(20)}", "url": f"https://host/{number}", "date": day}
            line |= {"language": generator.choice(["C", "Rust"]), "license": generator.choice(["MIT", "\ud800 odd"]), **changed}
        lines.append(json.dumps(line))
    path.write_text("\n".join(lines))
    return path


def recipe_of(*paths: Path, **data):
    return small_recipe([{"name": path.stem, "kind": "jsonl", "path": str(path)} for path in paths], vocabulary=300, **data)


def build(paths, directory: Path, workers: int = 1, **data) -> DataManifest:
    return build_data(recipe_of(*paths, **data), directory, workers=workers, shard_bytes=5_000, part_bytes=6_000)


def documents_of(directory: Path, manifest: DataManifest) -> list[tuple[str, bool, str, str, dict]]:
    """(source, held out, text, origin, facts) of every document, from tokens and table."""
    tokenizer = Tokenizer.load(directory / manifest.tokenizer.file, manifest.tokenizer.document_token)
    found = []
    dtype = "<u2" if manifest.dtype == "uint16" else "<u4"
    for entry in manifest.sources:
        for held_out, tokens in ((False, entry.training), (True, entry.held_out)):
            if tokens is None:
                continue
            flat = np.concatenate([np.fromfile(directory / shard.file, dtype) for shard in tokens.shards])
            ends = np.fromfile(directory / tokens.ends.file, "<u8").astype(int).tolist()
            table = Table(directory, entry.document_facts, held_out)
            assert len(table) == tokens.documents == len(ends)
            for number, (start, end) in enumerate(zip([0, *ends], ends)):
                known = table[number]
                text = tokenizer.decode(flat[start + 1 : end])
                found.append((entry.name, held_out, text, known.origin, dict(known.facts)))
    return found


def expected_facts(line: dict, origin: str) -> dict:
    names = {"repo": "repository", "url": "url", "date": "time", "language": "language", "license": "licence"}
    return {"path": origin} | {names[key]: value for key, value in line.items() if key != "text"}


@pytest.mark.parametrize("prepare", [None, PREPARE])
@pytest.mark.parametrize("by", ["order", "content", "repository", "time"])
def test_every_document_has_its_own_facts(tmp_path, prepare, by):
    paths = [write_facts(tmp_path / "b.jsonl", 150, 1), write_facts(tmp_path / "a.jsonl", 90, 2)]
    manifest = build(paths, tmp_path / "data", prepare=prepare, held_out=500, held_out_by=by)
    lines = {path.stem: path.read_text().splitlines() for path in paths}
    found = documents_of(tmp_path / "data", manifest)
    assert len(found) == 240
    assert len({(source, origin) for source, _, _, origin, _ in found}) == 240
    assert sum(held_out for _, held_out, *_ in found) > 4
    for source, _, text, origin, facts in found:
        line = json.loads(lines[source][int(origin.rpartition(":")[2]) - 1])
        assert text == line["text"]
        assert facts == expected_facts(line, origin)


@pytest.mark.parametrize("by", ["order", "repository"])
def test_the_number_of_workers_and_where_parts_are_cut_do_not_show(tmp_path, by):
    path = write_facts(tmp_path / "a.jsonl", 200)
    contents = []
    for workers, part_bytes in ((1, None), (2, 6_000), (1, 1)):
        directory = tmp_path / f"{workers}"
        recipe = recipe_of(path, held_out_by=by, held_out=500)
        manifest = build_data(recipe, directory, workers=workers, shard_bytes=5_000, part_bytes=part_bytes)
        files = {p.relative_to(directory): p.read_bytes() for p in directory.rglob("*") if p.is_file() and p.suffix != ".json"}
        contents.append((files, [(s.document_facts, s.held_out_rule) for s in manifest.sources]))
    assert contents[0] == contents[1] == contents[2]


def test_facts_are_labels_told_by_diff_and_kept_where_data_is_reused(tmp_path):
    paths = [write_facts(tmp_path / "a.jsonl", 60)]
    first = build(paths, tmp_path / "one")
    write_facts(tmp_path / "a.jsonl", 60, license="Apache-2.0")
    second = build(paths, tmp_path / "two")
    assert first.digest() == second.digest()
    found = compare(open_side(tmp_path / "one"), open_side(tmp_path / "two"))
    assert found.same_content
    assert not found.equal
    assert [change.what for change in found.sources[0].changes] == ["facts_of_documents"]

    told = []
    again = build_data(
        recipe_of(*paths), tmp_path / "one", lambda what, facts: told.append((what, facts)), shard_bytes=5_000, part_bytes=6_000
    )
    assert again.sources[0].document_facts == first.sources[0].document_facts
    (reused,) = [facts for what, facts in told if what == "reused"]
    assert reused["other_facts"] == ["a"]
    assert "facts of documents stand there as they were then, not as they are now: a" in stage_line("reused", reused)


def test_damaged_facts_are_refused_and_found_with_their_block(tmp_path):
    manifest = build([write_facts(tmp_path / "a.jsonl", 60)], tmp_path / "data")
    facts = manifest.sources[0].document_facts
    for entry in (facts.facts, facts.training.origins, facts.training.index, facts.held_out.origins, facts.held_out.index):
        path = tmp_path / "data" / entry.file
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[len(whole) // 2] ^= 1
        path.write_bytes(damaged)
        assert [(d.file, d.block) for d in verify(tmp_path / "data").damages] == [(entry.file, 0)]
        path.write_bytes(whole)
    assert verify(tmp_path / "data").damages == ()
    path = tmp_path / "data" / facts.facts.file
    path.write_bytes(path.read_bytes().replace(b"MIT", b"mit"))
    with pytest.raises(EnvironmentFault, match=r"documents\.facts"):
        [Table(tmp_path / "data", facts)[number] for number in range(40)]


def test_facts_that_are_damaged_or_gone_are_no_build_to_use_again(tmp_path):
    paths = [write_facts(tmp_path / "a.jsonl", 60)]
    known = build(paths, tmp_path / "data").sources[0].document_facts
    for entry in (known.facts, known.training.origins, known.training.index, known.held_out.origins, known.held_out.index):
        path = tmp_path / "data" / entry.file
        whole = path.read_bytes()
        for damage in (whole[:-1], whole[:-1] + b"!", whole + b"x", None):
            path.unlink() if damage is None else path.write_bytes(damage)
            with pytest.raises(EnvironmentFault, match=path.name) as caught:
                build(paths, tmp_path / "data")
            assert "in another directory" in caught.value.problems[0].way_out
        path.write_bytes(whole)
    build(paths, tmp_path / "data")


def test_a_copy_without_its_facts_is_read_and_says_so(tmp_path, capsys):
    path = write_facts(tmp_path / "a.jsonl", 60)
    recipe = tmp_path / "r.toml"
    recipe.write_text(RECIPE.format(path=path, stage="sequence = 16"))
    assert run_guarded(["data", "build", str(recipe), "--out", str(tmp_path / "data")]) == 0
    show = ["data", "show", str(tmp_path / "data"), "1", "--recipe", str(recipe)]
    capsys.readouterr()
    assert run_guarded(show) == 0
    assert "is missing" not in capsys.readouterr().out
    (missing,) = (tmp_path / "data").rglob("documents.facts")
    missing.unlink()
    assert run_guarded(show) == 0
    name = missing.relative_to(tmp_path / "data").as_posix()
    assert capsys.readouterr().out.count(f"what is known of documents is missing: {name}") == 1


def test_windows_longer_than_chunks_are_refused_by_the_build(tmp_path, capsys):
    path = write_facts(tmp_path / "a.jsonl", 60)
    recipe, packed = tmp_path / "r.toml", 'packing = "best-fit"\nsequence = 128'
    out = ["--out", str(tmp_path / "data")]
    for chunk in ("chunk = 64", ""):  # as asked for, and as it follows from the tokens
        recipe.write_text(RECIPE.format(path=path, stage=packed).replace("held_out = 500", f"held_out = 500\n{chunk}"))
        assert run_guarded(["data", "build", str(recipe), *out]) == 2
        told = capsys.readouterr().err
        assert "sequence length 128 exceeds the chunks of source a" in told
        assert "data.chunk >= 128" in told
    recipe.write_text(RECIPE.format(path=path, stage="sequence = 16"))
    assert run_guarded(["data", "build", str(recipe), *out]) == 0
    recipe.write_text(RECIPE.format(path=path, stage=packed))
    capsys.readouterr()
    for verb in (["build", str(recipe), *out], ["mixture", str(recipe), "--data", str(tmp_path / "data")]):
        assert run_guarded(["data", *verb]) == 2
        assert "exceeds the chunks of source a" in capsys.readouterr().err


def test_a_name_that_is_no_utf8_is_read_digested_and_shown_as_its_escape(tmp_path, capsysbinary):
    tree = write_words(tmp_path / "tree", 40)
    odd = os.fsencode(tree) + b"/\xff.txt"
    try:
        with open(odd, "wb") as file:
            file.write(b"a text of its own, in a file whose name is no UTF-8\n" * 3)
    except OSError:
        pytest.skip("this filesystem takes only UTF-8")
    recipe = small_recipe([{"name": "a", "kind": "text-tree", "path": str(tree)}], prepare=PREPARE)
    manifest = build_data(recipe, tmp_path / "data", workers=1)
    assert build_data(recipe, tmp_path / "data", workers=1) == manifest
    origins = [origin for *_, origin, _ in documents_of(tmp_path / "data", manifest)]
    assert "\udcff.txt" in origins
    say("\udcff.txt")
    print_json_line({"origin": "\udcff.txt"})
    assert capsysbinary.readouterr().out == b'\\udcff.txt\n{"origin": "\\udcff.txt"}\n'


def test_no_credentials_and_nothing_that_steps_look_for_is_known_of_a_document(tmp_path):
    token = "ghp_" + "a1B2" * 9
    url = "https://me:hunter22@host/x?token=abc&page=2&X-Amz-Signature=def#sig=ghi"
    texts = [json.loads(line)["text"] for line in write_facts(tmp_path / "texts", 40).read_text().splitlines()]
    lines = [{"text": text, "url": url, "path": f"jane.roe@realcorp.com/{token}/{n}.txt"} for n, text in enumerate(texts)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    shown = "https://[removed]@host/x?token=[removed]&page=2&X-Amz-Signature=[removed]#sig=[removed]"
    for prepare, name in (
        (None, f"jane.roe@realcorp.com/{token}/"),
        ({"secrets": {"policy": "drop"}}, "jane.roe@realcorp.com/[GitHub token removed]/"),
        ({"secrets": {}, "personal": {}}, "[email removed]/[GitHub token removed]/"),
    ):
        directory = tmp_path / str(len(name))
        found = documents_of(directory, build([path], directory, prepare=prepare))
        assert len(found) == 40
        assert all(facts["url"] == shown and facts["path"].startswith(name) for *_, facts in found)


def test_audit_counts_all_text_by_language_and_licence(tmp_path, capsys):
    path = write_facts(tmp_path / "a.jsonl", 150)
    manifest = build([path], tmp_path / "data")
    (source,) = audit(tmp_path / "data").sources
    training = [row for row in documents_of(tmp_path / "data", manifest) if not row[1]]
    wanted: dict[tuple[str, str], list[int]] = {}
    for _, _, text, _, facts in training:
        row = wanted.setdefault((facts.get("language", ""), facts.get("licence", "")), [0, 0])
        row[0] += 1
        row[1] += len(text.encode())
    assert {(g.language, g.licence): [g.documents, g.bytes] for g in source.groups} == wanted
    assert len(wanted) == 5
    assert sum(g.bytes for g in source.groups) == manifest.sources[0].bytes
    assert sum(g.tokens for g in source.groups) == source.tokens
    assert run_guarded(["data", "audit", str(tmp_path / "data")]) == 0
    shown = capsys.readouterr().out
    assert "not stated; the source: unknown" in shown
    assert "\ud800" not in shown


def test_blocks_of_any_cut_give_the_same_inventory(tmp_path):
    from headway.data.inspect.groups import GroupSums

    manifest = build([write_facts(tmp_path / "a.jsonl", 150)], tmp_path / "data")
    reader = TokenReader(tmp_path / "data", manifest)
    token_bytes = Tokenizer.load(tmp_path / "data" / "tokenizer.json", "<|document|>").token_bytes()
    flat = np.concatenate(list(reader.training_blocks(0)))
    found = []
    for step in (1, 7, 64, flat.size):
        inventory = GroupSums(Table(tmp_path / "data", manifest.sources[0].document_facts), reader.document_ends(0), token_bytes)
        for at in range(0, flat.size, step):
            inventory.add(flat[at : at + step])
        found.append(inventory.groups())
    assert found[0] == found[1] == found[2] == found[3]


def test_token_bytes_are_those_of_the_text(tmp_path):
    build([write_facts(tmp_path / "a.jsonl", 60)], tmp_path / "data")
    tokenizer = Tokenizer.load(tmp_path / "data" / "tokenizer.json", "<|document|>")
    sizes = tokenizer.token_bytes()
    assert sizes[tokenizer.document_token_id] == 0
    for text in ["plain", "自由 bä\n\t ", "\U0001f600\u200d", "<|document|>", ""]:
        assert sizes[tokenizer.encode(text)].sum() == len(text.encode())


# --- the table ----------------------------------------------------------------------------------------------------------------


def test_shared_facts_stand_once_and_values_are_cut():
    lines = FactLines()
    first = lines.lines("a", {"repository": "r", "path": "a", "licence": "MIT"})
    second = lines.lines("b", {"repository": "r", "path": "p", "licence": "MIT", "url": "u" * 9_000})
    assert first[0] == b'{"licence":"MIT","repository":"r"}\n'
    assert second[0] == b""
    assert first[1] == b'{"origin":"a"}\n'
    assert json.loads(second[1]) == {"origin": "b", "path": "p", "url": "u" * 2_000}


def test_joined_files_keep_what_they_have_alike_and_the_latest_time():
    def piece(name: str, **facts: str) -> Piece:
        return Piece("text\n", f"x/{name}", "s", facts)

    files = [
        piece("1", repository="r", licence="MIT", language="C", time="2020-01-01"),
        piece("2", repository="r", licence="MIT", language="Go", time="1700000000"),
        piece("3", repository="other", licence="MIT"),
    ]
    found = [(whole.facts, count) for whole, count in joined(files, depth=1, most=10**6)]
    assert found == [
        ({"repository": "r", "licence": "MIT", "time": "1700000000"}, 2),
        ({"repository": "other", "licence": "MIT"}, 1),
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-02", 86_400),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T00:00:01.9Z", 1),
        ("1700000000", 1_700_000_000),
        ("1700000000123", 1_700_000_000),
        ("-400000000.5", -400_000_001),
        ("20240501", 1_714_521_600),
        ("20240501T120000Z", 1_714_564_800),
        ("20240501120000", 1_714_564_800),
        ("2024-05-01 12:00:00", 1_714_564_800),
        ("1612122000000", 1_612_122_000),
        ("2019", None),
        ("202405", None),
        ("20241399", None),
        ("0", None),
        ("-1.5", None),
        ("", None),
        ("yesterday", None),
        ("nan", None),
        ("1e300", None),
    ],
)
def test_times_as_they_are_written(text, seconds):
    assert seconds_of(text) == seconds
    if seconds is not None:
        assert seconds_of(iso_time(seconds)) == seconds

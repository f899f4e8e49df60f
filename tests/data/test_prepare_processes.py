"""The preparation by several processes: the result is that of one, to the bit, and they end with whoever started them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from data_helpers import small_recipe
from prepare_helpers import some_files
from test_build_restart import SHARD_BYTES, recipe_of, same_data, start, write_lines
from test_prepare_build import ALL_STEPS, spoiled, write_tree
from test_prepare_contamination import questions

from headway.base.errors import EXIT_RUN, ConfigError, EnvironmentFault
from headway.base.files import read_json
from headway.data.build import build_data
from headway.data.manifest import MANIFEST_FILE, REPORT_FILE
from headway.data.pool import Pool
from headway.data.prepare import pipeline
from headway.data.prepare.batches import Batch, read_pieces, read_settled, write_pieces
from headway.data.prepare.order import steps_of
from headway.data.prepare.pipeline import Preparation
from headway.data.prepare.settle import measured_of, parted, settled
from headway.data.prepare.steps import Piece
from headway.data.prepare.worker import prepare
from headway.data.registry import write_registry
from headway.data.sources import Document
from headway.recipe.preparation import Prepare


@pytest.fixture
def recipe(tmp_path: Path):
    texts = spoiled()
    one = {origin: text for number, (origin, text) in enumerate(texts.items()) if number % 2}
    two = {origin: text for number, (origin, text) in enumerate(texts.items()) if not number % 2 or number % 5 == 1}
    write_registry(tmp_path / "registry.json", "tests", "1", {"sums": questions()})
    trees = {name: write_tree(tmp_path / name, found | {"empty.py": " \n"}) for name, found in (("b", one), ("a", two))}
    sources = [
        {"name": name, "kind": "text-tree", "path": str(path), "without": ["languages"] if name == "a" else []}
        for name, path in trees.items()
    ]
    return small_recipe(sources, prepare=ALL_STEPS | {"contamination": {"registry": str(tmp_path / "registry.json")}})


def test_the_result_is_the_same_to_the_bit_for_any_number_of_processes(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "_BATCH_BYTES", 40_000)
    manifests, reports = [], []
    for workers in (1, 2, 3):
        manifests.append(build_data(recipe, tmp_path / f"data-{workers}", workers=workers))
        reports.append((tmp_path / f"data-{workers}" / REPORT_FILE).read_bytes())
    assert {manifest.digest() for manifest in manifests} == {manifests[0].digest()}
    assert {manifest.inputs_digest for manifest in manifests} == {manifests[0].inputs_digest}
    assert [source.preparation for manifest in manifests for source in manifest.sources] == 3 * [
        source.preparation for source in manifests[0].sources
    ]
    assert set(reports) == {reports[0]}
    dropped = set().union(*(source.dropped for source in manifests[0].sources))
    assert {"contamination", "near_duplicate", "duplicate_elsewhere", "secret", "vendored", "empty"} <= dropped
    assert any(row.step == "lines" and row.changed for source in manifests[0].sources for row in source.preparation)


def test_a_piece_comes_back_from_another_process_as_if_it_had_stayed(tmp_path):
    steps = steps_of([("text", {"unicode": "nfc"}), ("personal", {"policy": "redact", "kinds": ["email"]})], tmp_path)
    steps += steps_of([("near_duplicates", {"words": 2, "threshold": 0.8, "permutations": 32, "seed": 0})], tmp_path)
    looking, comparing = parted(steps)
    pieces = [
        Piece(text, f"é{number}", "s") for number, text in enumerate(["cafe\u0301 me@there.org", "plain", "one two three", "x"])
    ]
    write_pieces(tmp_path / "0", pieces)
    assert read_pieces(tmp_path / "0") == pieces
    prepare(Batch(str(tmp_path / "0"), ()), steps)
    for piece, found in zip(pieces, read_settled(tmp_path / "0", pieces), strict=True):
        wanted = settled(piece, looking)
        assert (found.piece, found.dropped, found.events, found.passes) == (wanted.piece, "", wanted.events, wanted.passes)
        for got, own in zip(found.measured, measured_of(wanted.piece, comparing), strict=True):
            assert [array.tolist() for array in got] == [array.tolist() for array in own]
    assert not list(tmp_path.glob("0.*"))


def test_documents_come_in_their_order_whichever_process_is_done_first(recipe, tmp_path, monkeypatch):
    names = ["wanted", "short"] * 21
    letters = random.Random(0)
    words = [" ".join("".join(letters.choices("abcdefgh", k=5)) for _ in range(200 if name == "wanted" else 1)) for name in names]
    texts = {f"{name}-{number}": text for number, (name, text) in enumerate(zip(names, words, strict=True))}
    monkeypatch.setattr(pipeline, "_BATCH_DOCUMENTS", 3)
    monkeypatch.setattr(pipeline, "Pool", lambda module, *rest: Pool("late_worker", *rest))
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}")
    asked = Prepare.model_validate({"quality": {}, "near_duplicates": {}})
    data = recipe.data.model_copy(update={"prepare": asked, "sources": recipe.data.sources[:1]})
    found = []
    for workers in (1, 2):
        read = lambda source: (Document(text, origin) for origin, text in texts.items())  # noqa: E731
        preparation = Preparation(data, tmp_path, read, lambda what, facts: None, workers=workers)
        documents = list(preparation.documents(data.sources[0]))
        found.append([(document.origin, document.text, document.dropped) for document in documents])
        preparation.close()
    assert found[0] == found[1]
    assert {dropped for _, _, dropped in found[0]} == {"", "short"}


def test_what_a_process_refuses_is_the_builds_one_message(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("headway.data.prepare.pipeline.settings_of", lambda prepare: [("contamination", {"registry": "nowhere"})])
    with pytest.raises(ConfigError, match="cannot read evaluation registry"):
        build_data(recipe, tmp_path / "data", workers=2)


def test_a_process_that_is_killed_ends_the_build_with_one_message(recipe, tmp_path):
    texts = iter(list(some_files().items()) * 50)

    def read(source):
        for number, (origin, text) in enumerate(texts):
            if number == 300:
                os.kill(preparation._elsewhere._pool._workers[0].process.pid, 9)
            yield Document(text, origin)

    preparation = Preparation(recipe.data, tmp_path, read, lambda what, facts: None, workers=2)
    pipeline_source = recipe.data.sources[0]
    try:
        with pytest.raises(EnvironmentFault, match="a process that prepares ended by signal 9"):
            list(preparation.documents(pipeline_source))
    finally:
        preparation.close()


def test_a_build_that_is_killed_while_others_prepare_is_the_undisturbed_one(tmp_path):
    sources = [write_lines(tmp_path / f"{name}.jsonl", 120, number) for number, name in enumerate("ab")]
    prepare = {"quality": {}, "personal": {}, "duplicates": {}, "near_duplicates": {}, "lines": {"copies": 3}}
    build_data(recipe_of(sources, prepare=prepare), tmp_path / "undisturbed", workers=1, shard_bytes=SHARD_BYTES)
    for moment in ("prepared", "documents", "tokenizer"):
        child = start(sources, tmp_path / "data", 2, prepare=prepare)
        for line in child.stdout:
            if f'"{moment}"' in line:
                child.kill()
        assert child.wait() == -signal.SIGKILL
    child = start(sources, tmp_path / "data", 2, prepare=prepare)
    child.communicate()
    assert child.returncode == 0
    assert same_data(tmp_path / "data", tmp_path / "undisturbed")
    assert not any(path.name.endswith(".building") for path in tmp_path.iterdir())


def test_processes_end_with_the_one_that_started_them(tmp_path):
    code = (
        "import os, sys, time\n"
        "from headway.data.pool import Pool\n"
        "pool = Pool('headway.data.prepare.worker', {'steps': []}, 2, 'prepares')\n"
        "print(*(worker.process.pid for worker in pool._workers), flush=True)\n"
        "time.sleep(60)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pids = [int(word) for word in owner.stdout.readline().split()]
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + 20
    while (alive := [pid for pid in pids if _is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(pids) == 2
    assert not alive


def test_a_process_whose_answer_nobody_reads_ends_without_a_word(tmp_path):
    """As when its owner is killed while it works, before it has looked for it again."""
    write_pieces(tmp_path / "0", [Piece("text " * 100, "a", "s")])
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "headway.data.prepare.worker", str(os.getpid())]
    lines = '{"steps": []}\n' + json.dumps({"stem": str(tmp_path / "0"), "without": []}) + "\n"
    ended = subprocess.run(command, input=lines, stdout=writes, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writes)
    assert (tmp_path / "0.out").exists()
    assert (ended.returncode, ended.stderr) == (EXIT_RUN, "")


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_little_text_starts_no_process_and_much_text_does(recipe, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(pipeline, "Pool", lambda *arguments: started.append(arguments) or _Refuses())
    build_data(recipe, tmp_path / "data")
    assert not started
    monkeypatch.setattr(pipeline, "LITTLE_TEXT_BYTES", 100_000)
    with pytest.raises(ZeroDivisionError):
        build_data(recipe, tmp_path / "other")
    assert len(started) == 1


class _Refuses:
    def run(self, tasks, most):
        raise ZeroDivisionError

    def close(self) -> None: ...


def test_how_far_the_preparation_is_is_told(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "_TELL_EVERY_BYTES", 50_000)
    told = []
    build_data(recipe, tmp_path / "data", lambda what, facts: told.append((what, dict(facts))))
    far = [facts["bytes"] for what, facts in told if what == "preparing" and facts["source"] == "a"]
    assert len(far) > 3
    assert far == sorted(far)
    report = read_json(tmp_path / "data" / REPORT_FILE)
    assert far[-1] <= report["sources"]["a"]["read"]["bytes"]
    assert json.loads((tmp_path / "data" / MANIFEST_FILE).read_text())["sources"]

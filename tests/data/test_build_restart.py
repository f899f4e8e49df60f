"""A build that is killed goes on where it was, and what it makes is what an undisturbed build makes, to the bit."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from build_child import PART_BYTES, SHARD_BYTES
from data_helpers import small_recipe

from headway.base.errors import EXIT_RUN, EnvironmentFault
from headway.base.failpoints import BUILD_POINTS
from headway.data import pool
from headway.data.build import build_data
from headway.data.manifest import DataManifest
from headway.data.parts import PartPlace, plan
from headway.data.reader import TokenReader
from headway.data.sources import Document
from headway.data.spool import AsRead, SealedSpool, Shuffled

HERE = Path(__file__).parent
WORDS = ["standing", "because", "through", "without", "another", "between", "against", "general", "children", "nothing"]
SYLLABLES = ["ka", "to", "mi", "ren", "sol", "vei", "ba", "nu"]


def write_lines(path: Path, documents: int, seed: int) -> Path:
    generator = random.Random(seed)
    texts = (
        " ".join("".join(generator.choices(SYLLABLES, k=generator.randint(1, 3))) for _ in range(60)) for _ in range(documents)
    )
    path.write_text("\n".join(json.dumps({"text": f"{n} {text}"}) for n, text in enumerate(texts)))
    return path


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> list[Path]:
    """Two sources that share twenty texts."""
    root = tmp_path_factory.mktemp("sources")
    first, second = write_lines(root / "a.jsonl", 200, 1), write_lines(root / "b.jsonl", 120, 2)
    second.write_text("\n".join([*second.read_text().splitlines(), *first.read_text().splitlines()[:20]]))
    return [first, second]


@pytest.fixture(scope="module")
def undisturbed(sources, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("undisturbed") / "data"
    build(sources, directory)
    return directory


def recipe_of(sources, **data):
    return small_recipe([{"name": path.stem, "kind": "jsonl", "path": str(path)} for path in sources], **data)


def build(sources, directory, *, workers: int = 1, tell=None) -> DataManifest:
    return build_data(recipe_of(sources), directory, tell, workers=workers, shard_bytes=SHARD_BYTES, part_bytes=PART_BYTES)


def start(
    sources, directory: Path, workers: int = 1, drill: Path | None = None, prepare: dict | None = None
) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        str(HERE / "build_child.py"),
        str(directory),
        str(workers),
        str(drill or "none"),
        json.dumps({"prepare": prepare} if prepare else {}),
        *map(str, sources),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def told(output: str, what: str) -> list[dict]:
    return [facts for kind, facts in map(json.loads, output.splitlines()) if kind == what]


def same_data(one: Path, other: Path) -> bool:
    """Every byte but the times in the manifest, and its seal over them."""

    def content(directory: Path) -> dict:
        files = {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}
        manifest = json.loads(files.pop("manifest.json"))
        del manifest["created"], manifest["seal"]
        for source in manifest["sources"]:
            del source["registered"]["read_at"]
        return files | {"manifest": manifest}

    return content(one) == content(other)


@pytest.mark.parametrize("workers", [2, 4])
def test_the_number_of_workers_does_not_show(sources, undisturbed, tmp_path, workers):
    build(sources, tmp_path / "data", workers=workers)
    assert same_data(tmp_path / "data", undisturbed)
    TokenReader(tmp_path / "data", DataManifest.load(tmp_path / "data")).verify_all()


@pytest.mark.parametrize("part_bytes", [1, 50_000, None])
def test_where_parts_are_cut_does_not_show(sources, undisturbed, tmp_path, part_bytes):
    build_data(recipe_of(sources), tmp_path / "data", shard_bytes=SHARD_BYTES, part_bytes=part_bytes)
    assert same_data(tmp_path / "data", undisturbed)


def drill_at(root: Path, point: str, step: int | None) -> Path:
    root.mkdir()
    (root / "run.json").write_text(json.dumps({"kind": "run", "drill": True}))
    (root / "drill.json").write_text(json.dumps({"faults": [{"point": point, "action": "kill", "step": step}]}))
    return root


@pytest.mark.parametrize("point", BUILD_POINTS)
def test_killed_at_every_named_point_it_goes_on(sources, undisturbed, tmp_path, point):
    """In the second source, or the fourth part, or wherever there is only one."""
    step = 1 if ".source" in point else 3 if ".part" in point else 0
    first = start(sources, tmp_path / "data", drill=drill_at(tmp_path / "drill", point, step))
    first_output = first.communicate(timeout=100)[0]
    assert first.returncode == -signal.SIGKILL
    assert (tmp_path / "data").exists() == (point == "build.published")
    second = start(sources, tmp_path / "data")
    output = second.communicate(timeout=100)[0]
    assert second.returncode == 0
    assert same_data(tmp_path / "data", undisturbed)
    assert not (tmp_path / ".data.building").exists()

    place = BUILD_POINTS.index(point)
    kept = [facts["kept"] for facts in told(output, "documents")]
    assert kept == [True, place >= BUILD_POINTS.index("build.source_sealed")]
    kept = [facts["kept"] for facts in told(output, "tokenizer")]
    assert kept == ([] if point == "build.published" else [place >= BUILD_POINTS.index("build.tokenizer_written")])
    assert len(told(output, "training")) == kept.count(False)
    again = [facts for facts in told(output, "tokens") if facts["bytes"] > facts["kept_bytes"]]
    assert told(first_output, "tokens") or point in BUILD_POINTS[:4]
    if place >= BUILD_POINTS.index("build.source_assembled"):
        assert again == []
    elif point.startswith("build.part"):
        parts = 4 if point == "build.part_sealed" else 3
        assert again[0]["kept_bytes"] >= parts * PART_BYTES
        assert again[0]["kept_bytes"] < (parts + 1) * (PART_BYTES + 1_000)


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_again_and_again_at_random_moments(sources, undisturbed, tmp_path, workers):
    generator, kills = random.Random(workers), 0
    for _ in range(60):
        child = start(sources, tmp_path / "data", workers)
        lines = generator.randrange(1, 25)
        heard = ""
        for line in child.stdout:  # a moment is so many things told, and a little more
            heard += line
            lines -= 1
            if not lines:
                time.sleep(generator.random() * 0.02)
                child.kill()
        child.wait()
        if child.returncode == 0:
            break
        assert child.returncode == -signal.SIGKILL
        kills += 1
    assert child.returncode == 0
    assert kills >= 2
    assert same_data(tmp_path / "data", undisturbed)


def test_processes_end_with_the_build(sources, tmp_path):
    child = start(sources, tmp_path / "data", 2)
    next(line for line in child.stdout if '"tokens"' in line)

    def workers() -> int:
        found = 0
        for entry in Path("/proc").iterdir():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            except OSError:
                continue
            found += command[2:4] == [b"headway.data.worker", str(child.pid).encode()]
        return found

    assert workers() >= 1
    child.kill()
    child.communicate()
    deadline = time.monotonic() + 20
    while workers() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert workers() == 0


def heed_interrupts() -> None:
    """Tests that a shell runs in the background ignore them, and so would their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupted_build_goes_on(sources, undisturbed, tmp_path):
    """By Ctrl-C, which reaches every process of the terminal's group."""
    arguments = [str(tmp_path / "data"), "2", "none", "{}", *map(str, sources)]
    command = [sys.executable, str(HERE / "build_child.py"), *arguments]
    for _ in range(9):  # on a busy machine a build may end before the interrupt is sent
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        child = subprocess.Popen(command, **pipes, start_new_session=True, preexec_fn=heed_interrupts)
        next(line for line in child.stdout if '"tokens"' in line)
        os.killpg(child.pid, signal.SIGINT)
        said = child.communicate(timeout=60)[1]
        if child.returncode != 0:
            break
        shutil.rmtree(tmp_path / "data")
    assert child.returncode != 0
    assert said.count("Traceback") == 1
    build(sources, tmp_path / "data")
    assert same_data(tmp_path / "data", undisturbed)


def test_a_process_ends_with_its_owner_whatever_it_waits_for():
    command = [sys.executable, "-m", "headway.data.worker", "1"]  # no child of it: as if the build had ended meanwhile
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.wait(timeout=60) == EXIT_RUN


@pytest.fixture
def killed_late(sources, tmp_path) -> Path:
    """A directory whose build was killed when everything was made and nothing was there yet."""
    child = start(sources, tmp_path / "data", drill=drill_at(tmp_path / "drill", "build.assembled", 0))
    child.communicate()
    return tmp_path / "data"


def work_of(directory: Path) -> Path:
    return directory.with_name(f".{directory.name}.building")


def test_damaged_work_is_found_and_done_again(sources, undisturbed, killed_late, tmp_path):
    shutil.copytree(work_of(killed_late), tmp_path / "work")
    files = sorted(p.relative_to(tmp_path / "work") for p in (tmp_path / "work").rglob("*") if p.is_file())
    wanted = ["spool-0/text", "spool-1/ends", "spool-0/digests", "spool-1/receipt.json", "made/key.json", "made/tokenizer.json"]
    wanted += ["made/tokenizer-receipt.json", *(f"made/parts/01/000002.{end}" for end in ("tokens", "sizes", "json"))]
    assert set(wanted) <= set(map(str, files))
    for name in wanted:
        for damage in ("flip", "truncate", "remove"):
            shutil.rmtree(work_of(killed_late), ignore_errors=True)
            shutil.rmtree(killed_late, ignore_errors=True)
            shutil.copytree(tmp_path / "work", work_of(killed_late))
            path = work_of(killed_late) / name
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.unlink()
            if damage != "remove":
                path.write_bytes(data if damage == "flip" else data[: len(data) // 2])
            build(sources, killed_late)
            assert same_data(killed_late, undisturbed), (name, damage)


def test_only_the_damaged_part_is_made_again(sources, killed_late):
    part = work_of(killed_late) / "made/parts/00/000001.tokens"
    data = bytearray(part.read_bytes())
    data[7] ^= 4
    part.write_bytes(data)
    facts: list[dict] = []
    build(sources, killed_late, tell=lambda what, found: facts.append(found) if what == "tokens" else None)
    last = {found["source"]: found for found in facts}
    assert PART_BYTES <= last["a"]["bytes"] - last["a"]["kept_bytes"] < PART_BYTES + 1_000
    assert last["b"]["bytes"] == last["b"]["kept_bytes"] == last["b"]["total_bytes"]


def test_a_part_that_is_damaged_while_the_build_goes_on_is_not_taken(killed_late):
    place = PartPlace(root=work_of(killed_late) / "made/parts", dtype="uint16")
    spool = SealedSpool.open(work_of(killed_late) / "spool-0")
    task = list(plan(0, spool, Shuffled(len(spool), 3, "a"), PART_BYTES))[3]
    spool.close()
    assert place.read(task).counts.size == task.stop - task.start
    path = place.stem(task).with_suffix(".tokens")
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(EnvironmentFault, match=r"a finished part is damaged: .*000003"):
        place.read(task)


def test_text_that_changed_since_the_kill_is_read_again(sources, tmp_path):
    mine = [shutil.copy(path, tmp_path / path.name) for path in sources]
    child = start(mine, tmp_path / "data", drill=drill_at(tmp_path / "drill", "build.assembled", 0))
    child.communicate()
    Path(mine[0]).write_text(Path(mine[0]).read_text().replace("ka", "mi", 1))  # as long as before
    facts: list[dict] = []
    build(mine, tmp_path / "data", tell=lambda what, found: facts.append(found) if what == "documents" else None)
    assert [found["kept"] for found in facts] == [False, False]  # the second is told apart from the first
    build(mine, tmp_path / "fresh")
    assert same_data(tmp_path / "data", tmp_path / "fresh")


def test_other_settings_take_the_documents_and_not_the_tokens(sources, killed_late, tmp_path):
    other = recipe_of(sources).model_copy(
        update={"tokenizer": recipe_of(sources).tokenizer.model_copy(update={"vocabulary": 290})}
    )
    facts: list[list] = []
    build_data(other, killed_late, lambda *found: facts.append([*found]), part_bytes=PART_BYTES)
    assert [found["kept"] for what, found in facts if what == "documents"] == [True, True]
    assert all(found["kept_bytes"] == 0 for what, found in facts if what == "tokens")
    assert DataManifest.load(killed_late).digest() == build_data(other, tmp_path / "fresh").digest()


def test_a_process_that_is_killed_is_one_clear_error_and_the_next_build_goes_on(sources, undisturbed, tmp_path, monkeypatch):
    processes = []

    class Popen(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            processes.append(self)

    monkeypatch.setattr(pool.subprocess, "Popen", Popen)

    def kill(what, facts):
        if what == "tokens" and facts["done"] > 60:
            processes[0].kill()

    with pytest.raises(EnvironmentFault, match=r"a process that tokenises ended by signal 9\n.*\n.*finished parts are kept"):
        build(sources, tmp_path / "data", workers=2, tell=kill)
    assert all(process.poll() is not None for process in processes)
    facts: list[dict] = []
    build(sources, tmp_path / "data", workers=2, tell=lambda what, found: facts.append(found) if what == "tokens" else None)
    assert facts[0]["kept_bytes"] > 0
    assert same_data(tmp_path / "data", undisturbed)


def test_what_a_process_cannot_do_is_told_as_it_told_it(sources, tmp_path, monkeypatch):
    def lock(what, facts):
        if what == "tokenizer":  # what the processes will read
            (work_of(tmp_path / "data") / "made/tokenizer.json").write_text("torn")

    with pytest.raises(EnvironmentFault, match="tokenizer is damaged"):
        build(sources, tmp_path / "data", workers=2, tell=lock)


def test_sources_are_registered(sources, undisturbed, tmp_path):
    manifest = DataManifest.load(undisturbed)
    assert [source.registered.found for source in manifest.sources] == [200, 140]
    assert [source.dropped for source in manifest.sources] == [{}, {"duplicate_elsewhere": 20}]
    assert [source.registered.where for source in manifest.sources] == [str(path) for path in sources]
    moved = [shutil.copy(path, tmp_path / path.name) for path in sources]
    again = build(moved, tmp_path / "data")
    for one, two in zip(manifest.sources, again.sources):
        assert one.registered.snapshot == two.registered.snapshot
        assert one.digest == two.digest
    assert again.digest() == manifest.digest()


def test_a_snapshot_is_of_the_documents_as_read():
    def digest(*documents: Document) -> str:
        read = AsRead(documents)
        list(read)
        return read.digest

    a, b, none = Document("a\r\n", "x"), Document("b", "x"), Document(None, "x", "binary")
    digests = [digest(), digest(a), digest(b), digest(a, b), digest(b, a), digest(none), digest(a, none), digest(none, a)]
    digests += [
        digest(Document("a\n", "x")),
        digest(Document(None, "x", "link")),
        digest(Document("\ud800", "x")),
        digest(Document("", "x")),
    ]
    assert len(set(digests)) == len(digests)
    assert digest(a, b) == digest(Document("a\r\n", "elsewhere", facts={"path": "y"}), b)


def test_a_build_of_an_earlier_version_is_used_again_and_then_registered(sources, tmp_path):
    first = build(sources, tmp_path / "data")
    plain = first.to_json()
    for source in plain["sources"]:
        del source["registered"]
    (tmp_path / "data" / "manifest.json").write_text(json.dumps(plain))
    assert DataManifest.load(tmp_path / "data").sources[0].registered is None
    second = build(sources, tmp_path / "data")
    assert second.digest() == first.digest()
    assert DataManifest.load(tmp_path / "data").sources[0].registered.snapshot == first.sources[0].registered.snapshot
    third = build(sources, tmp_path / "data")
    assert [dataclasses.replace(s).registered for s in third.sources] == [s.registered for s in second.sources]


def test_parts_are_whole_documents_one_after_the_other(sources, tmp_path):
    child = start(sources, tmp_path / "data", drill=drill_at(tmp_path / "drill", "build.tokenizer_written", None))
    child.communicate()
    spool = SealedSpool.open(work_of(tmp_path / "data") / "spool-0")
    tasks = list(plan(0, spool, Shuffled(len(spool), 3, "a"), PART_BYTES))
    assert [task.start for task in tasks] == [0, *(task.stop for task in tasks[:-1])]
    assert tasks[-1].stop == len(spool) == 200
    assert sum(task.bytes for task in tasks) == spool.total_bytes
    assert all(PART_BYTES <= task.bytes < PART_BYTES + 1_000 for task in tasks[:-1])
    spool.close()


MEASURE = """
import sys
from pathlib import Path
from data_helpers import small_recipe
from headway.data.build import build_data

peak = 0

def measure(what, facts):
    global peak
    status = Path("/proc/self/status").read_text()
    own = sum(int(status.partition(name)[2].split()[0]) for name in ("RssAnon:", "RssShmem:"))  # pages of files can be dropped
    peak = max(peak, own)

recipe = small_recipe([{"name": "a", "kind": "jsonl", "path": sys.argv[1]}])
build_data(recipe, Path(sys.argv[2]), measure, shard_bytes=2**20, part_bytes=2**18)
print(peak)
"""


def test_memory_does_not_follow_the_number_of_documents(tmp_path):
    """Of many tiny documents: what is kept for each, in whichever stage, would show first."""
    peaks = []
    for count in (40_000, 160_000):
        path = tmp_path / f"{count}.jsonl"
        with path.open("w") as file:
            for number in range(count):
                text = " ".join(WORDS[int(digit)] for digit in str(number))  # few words: the trainer keeps all of them
                file.write(f'{{"text": "{text}"}}\n')
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
        environment |= {"RAYON_NUM_THREADS": "1"}
        command = [sys.executable, "-c", MEASURE, str(path), str(tmp_path / f"data-{count}")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    assert peaks[1] - peaks[0] < 1_500, peaks  # kilobytes: 12 bytes a document


@pytest.mark.parametrize("point", ["build.source_sealed", "build.part_sealed"])
def test_a_prepared_build_that_was_killed_is_the_undisturbed_one(sources, tmp_path, point):
    """What a source keeps depends on those before it: none of their spools is taken from the killed build."""
    prepare = {"text": {}, "duplicates": {}, "near_duplicates": {}}
    undisturbed = tmp_path / "undisturbed"
    recipe = recipe_of(sources, prepare=prepare)
    build_data(recipe, undisturbed, shard_bytes=SHARD_BYTES, part_bytes=PART_BYTES)
    drill = drill_at(tmp_path / "drill", point, 1)
    first = start(sources, tmp_path / "data", drill=drill, prepare=prepare)
    first.communicate(timeout=100)
    assert first.returncode == -signal.SIGKILL
    build_data(recipe, tmp_path / "data", shard_bytes=SHARD_BYTES, part_bytes=PART_BYTES)
    assert same_data(tmp_path / "data", undisturbed)
    steps = DataManifest.load(undisturbed).source("b").preparation
    assert sum(sum(step.dropped.values()) for step in steps) == 20


def test_a_key_that_shapes_no_document_reads_nothing_again(tmp_path):
    class Killed(BaseException):
        pass

    def stop(what, facts):
        if what == "tokenizer":
            raise Killed

    sources, kept = [write_lines(tmp_path / "a.jsonl", 120, 0)], []
    with pytest.raises(Killed):
        build_data(recipe_of(sources), tmp_path / "data", stop)
    again = recipe_of(sources, beyond_cap="rebalance")
    build_data(again, tmp_path / "data", lambda what, facts: kept.append(facts["kept"]) if what == "documents" else None)
    assert kept == [True]

"""C1 on the second place: killed at any call, what looks like a checkpoint is whole, and the same command completes it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mirror_cases import FILES, Faults, FaultyFileSystem, content, save_two
from store_cases import RUN_ID, chain_of, make_run

from headway.rundir.layout import RunDirectory
from headway.store.admissible import choose
from headway.store.mirror.mirror import Mirror

CHILD = Path(__file__).with_name("store_mirror_child.py")
NAME, OLDER = "g0001-s00000002", "g0001-s00000001"


@pytest.fixture(autouse=True)
def _no_faults(monkeypatch):
    monkeypatch.setattr(FaultyFileSystem, "faults", Faults())


def template(base: Path) -> dict[str, bytes]:
    run = make_run(base / "template" / "run")
    save_two(run, 1, 1)
    save_two(run, 1, 2)
    return content(run.checkpoints / NAME)


def killed(verb: str, base: Path) -> int:
    """How many calls there were to die at."""
    (base / "temporary").mkdir()  # for what the killed ones leave
    environment = {**os.environ, "PYTHONPATH": str(CHILD.parent), "TMPDIR": str(base / "temporary")}
    done = subprocess.run([sys.executable, str(CHILD), verb, str(base)], env=environment, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return int(done.stdout)


def test_C1_killed_at_every_call_of_a_put(tmp_path):
    expected = template(tmp_path)
    points = killed("put", tmp_path)
    assert points > 25
    states = set()
    for number in range(1, points + 1):
        root = tmp_path / str(number)
        run, mirror = RunDirectory.open(root / "run"), Mirror.open(f"faulty://{root}/mirror", RUN_ID)
        there = root / "mirror" / RUN_ID / NAME
        before = content(there) if there.is_dir() else {}
        states.add(frozenset(before))
        assert all(before[file] == expected[file] for file in before), f"call {number}: an object that is not whole"
        if mirror.has(NAME):
            assert set(before) == FILES, f"call {number}: a manifest without its files"
        copied = mirror.put(run.checkpoints / NAME)
        whole = [f"rank0000{r}.safetensors" for r in (0, 1) if f"receipt-0000{r}.json" in before]
        assert copied.kept_bytes == sum(len(expected[file]) for file in whole), f"call {number}: a whole file was sent again"
        assert mirror.verify(NAME).ok
        assert content(there) == expected
    assert frozenset() in states
    assert frozenset(FILES) in states
    assert len(states) > 4, "the kills hit different stages"


def test_C1_killed_at_every_call_of_a_fetch(tmp_path):
    expected = template(tmp_path)
    run = RunDirectory.open(tmp_path / "template" / "run")
    Mirror.open(f"faulty://{tmp_path}/template/mirror", RUN_ID).put(run.checkpoints / NAME)
    shutil.rmtree(run.checkpoints / NAME)
    points = killed("fetch", tmp_path)
    assert points > 25
    arrived = 0
    for number in range(1, points + 1):
        root = tmp_path / str(number)
        run, mirror = RunDirectory.open(root / "run"), Mirror.open(f"faulty://{root}/mirror", RUN_ID)
        choice = choose(run, chain_of(run))
        if (run.checkpoints / NAME).exists():
            arrived += 1
            assert choice.checkpoint == NAME
        else:
            assert choice.checkpoint == OLDER, f"call {number}: half a download counts"
            mirror.fetch(NAME, run.checkpoints)
        assert content(run.checkpoints / NAME) == expected
        assert choose(run, chain_of(run)).checkpoint == NAME
    assert 0 < arrived < points

"""Real ranks over gloo: a checkpoint of one layout continues under any other (C10), and faults on single ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from checkpoint_cases import make_run
from rank_child import WORLDS

from headway.base.records import read_records
from headway.checkpoint.load import load_checkpoint
from headway.checkpoint.tensors import DTYPES, bytes_view
from headway.rundir.segments import Segment, current_chain, read_segments, write_segment
from headway.store.admissible import choose
from headway.store.manifest import hash_blocks
from headway.store.verify import open_checkpoint, verify

CHILD = Path(__file__).with_name("rank_child.py")
TOLERANCE = 2e-6
"""Of losses after other orders of addition, fp32, three updates after the same bits."""

pytestmark = pytest.mark.e2e


class World:
    """A run directory whose segments are trained by real ranks."""

    def __init__(self, root: Path, faults: list[dict] | None = None):
        root.mkdir()
        self.root, self.run, self.segment = root, make_run(root / "run", faults), 1

    def go(self, layout: str, steps: int, saves: list[int], start: str | None = None, **more: object) -> dict[int, int]:
        """Train one segment; exit codes by rank."""
        plan = {"run": str(self.run.root), "segment": self.segment, "layout": layout, "from": start}
        path = self.root / f"plan-{self.segment}.json"
        path.write_text(json.dumps({**plan, "steps": steps, "saves": saves, **more}))
        environment = {**os.environ, "PYTHONPATH": str(CHILD.parent), "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, str(CHILD), str(path)], env=environment, check=True, timeout=240)
        return {int(rank): code for rank, code in json.loads((self.root / f"ends-{self.segment}.json").read_text()).items()}

    def result(self, rank: int = 0, segment: int | None = None) -> dict:
        return json.loads((self.root / f"result-{segment or self.segment}-{rank}.json").read_text())

    def next_segment(self, step: int, checkpoint: str) -> None:
        self.segment += 1
        write_segment(self.run, Segment(self.segment, self.segment - 1, step, checkpoint, "test", "automatic", self.segment, {}))

    def whole(self, name: str) -> dict[str, torch.Tensor]:
        """The state, loaded alone into plain tensors."""
        entries = open_checkpoint(self.run.checkpoints / name).tensors
        state = {key: torch.zeros(entry.shape, dtype=DTYPES[entry.dtype]) for key, entry in entries.items()}
        load_checkpoint(self.run.checkpoints / name, state)
        return state

    def errors(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.root.glob("error-*.txt")))


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """Six steps on four ranks, fsdp2 x tp2, saved after 3 and 6."""
    world = World(tmp_path_factory.mktemp("four") / "world")
    assert world.go("fsdp2xtp2", 6, [3, 6]) == dict.fromkeys(range(4), 0), world.errors()
    return world


def test_C10_four_ranks_leave_one_checkpoint(four):
    assert [outcome[:2] for outcome in four.result()["outcomes"] if outcome[0] == "committed"] == [
        ["committed", 3],
        ["committed", 6],
    ]
    directory = four.run.checkpoints / "g0001-s00000003"
    assert verify(directory).ok
    files = {chunk.file for entry in open_checkpoint(directory).tensors.values() for chunk in entry.chunks}
    assert len(files) == 4, "every rank writes its part"


def check_bits(world: World, name: str) -> None:
    """Every shard of every rank holds the bits of the whole."""
    whole = world.whole(name)
    for rank in range(len(list(world.root.glob(f"result-{world.segment}-*.json")))):
        for key, (offset, shape, digests) in world.result(rank)["shards"].items():
            part = whole[key][tuple(slice(o, o + n) for o, n in zip(offset, shape))].contiguous()
            assert list(hash_blocks(bytes_view(part))) == digests, (rank, key)


def test_C10_from_four_ranks_to_one_to_two_to_three(four):
    """fsdp2 x tp2 -> one, -> pp2, -> fsdp3, -> hsdp: the same bits, and the curve of the run that went on with four."""
    expected = four.result(segment=1)["losses"]
    for layout in ("one", "pp2", "fsdp3", "hsdp2x2", "fsdp2"):
        four.next_segment(3, "g0001-s00000003")
        ends = four.go(layout, 6, [6], "g0001-s00000003")
        assert ends == dict.fromkeys(range(WORLDS[layout]), 0), four.errors()
        check_bits(four, "g0001-s00000003")
        losses = four.result()["losses"]
        assert sorted(losses) == ["4", "5", "6"]
        for step, loss in losses.items():
            assert abs(loss - expected[step]) <= TOLERANCE * expected[step], (layout, step)
        assert verify(four.run.checkpoints / f"g{four.segment:04d}-s00000006").ok


def test_C10_two_one_two_three(tmp_path):
    """The world changes at every restart; each goes on from the one before."""
    world, name = World(tmp_path / "world"), None
    for number, layout in enumerate(("fsdp2", "one", "pp2", "fsdp3"), start=1):
        ends = world.go(layout, 2 * number, [2 * number], name)
        assert ends == dict.fromkeys(range(WORLDS[layout]), 0), world.errors()
        if name is not None:
            check_bits(world, name)
        name = f"g{world.segment:04d}-s{2 * number:08d}"
        assert choose(world.run, current_chain(read_segments(world.run))).checkpoint == name
        world.next_segment(2 * number, name)
    alone = World(tmp_path / "alone")
    assert alone.go("one", 8, []) == {0: 0}
    for number in range(1, 5):
        for step, loss in world.result(segment=number)["losses"].items():
            assert abs(loss - alone.result()["losses"][step]) <= TOLERANCE * loss


KILLS = [("snapshot.copied", 0), ("snapshot.copied", 1), ("save.data_partial", 0), ("save.data_partial", 1)]
KILLS += [("save.receipt_written", 1), ("save.receipt_written", 0), ("save.manifest_partial", 0), ("save.manifest_renamed", 0)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Losses of fsdp2 by step."""
    world = World(tmp_path_factory.mktemp("undisturbed") / "world")
    assert world.go("fsdp2", 6, []) == {0: 0, 1: 0}, world.errors()
    return world.result()["losses"]


@pytest.mark.parametrize(("point", "rank"), KILLS)
def test_C1_one_rank_or_its_writer_killed(tmp_path, undisturbed, point, rank):
    """The newest loadable is the newest committed one, whole; the other rank's half of it never counts."""
    world = World(tmp_path / "world", [{"point": point, "action": "kill", "step": 4, "rank": rank}])
    world.go("fsdp2", 4, [2, 4], commit_seconds=2)
    wait_for_writers(world)
    committed = point == "save.manifest_renamed" or (point, rank) == ("save.receipt_written", 1)  # nothing was missing then
    choice = choose(world.run, current_chain(read_segments(world.run)))
    assert (choice.checkpoint, choice.rejected) == (f"g0001-s0000000{4 if committed else 2}", [])
    assert verify(world.run.checkpoints / "g0001-s00000002").ok
    world.next_segment(choice.step, choice.checkpoint)
    assert world.go("fsdp2", 6, [6], choice.checkpoint) == {0: 0, 1: 0}, world.errors()
    again = world.result()["losses"]
    assert again == {step: loss for step, loss in undisturbed.items() if step in again}, "to the bit"


def wait_for_writers(world: World) -> None:
    """Until no writer of this run is left (they linger for seconds at most)."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = subprocess.run(["pgrep", "-f", f"headway.store.writer {world.run.root} "], capture_output=True, text=True).stdout
        if not found.strip():
            return
        time.sleep(0.1)
    raise AssertionError("writers do not end")


@pytest.mark.parametrize(("action", "words"), [("disk_full", "No space left"), ("io_error", "Input/output error")])
def test_C7_one_rank_cannot_write(tmp_path, action, words):
    """Its reason reaches the coordinator's trainer, training goes on, the next save is whole."""
    world = World(tmp_path / "world", [{"point": "save.data_written", "action": action, "step": 2, "rank": 1}])
    assert world.go("fsdp2", 4, [2, 4], commit_seconds=5) == {0: 0, 1: 0}, world.errors()
    outcomes = world.result()["outcomes"]
    assert [(kind, step) for kind, step, _ in outcomes if kind in ("committed", "failed")] == [("failed", 2), ("committed", 4)]
    failed = next(error for kind, _, error in outcomes if kind == "failed")
    assert "rank 1 could not write" in failed
    assert words in failed
    assert choose(world.run, current_chain(read_segments(world.run))).step == 4
    assert not (world.run.checkpoints / "g0001-s00000002").exists()


def test_C2_damage_that_one_rank_meets_is_everybodys_error(tmp_path):
    """Only rank 1 reads the damaged file: both end with its words, and neither trains on."""
    world = World(tmp_path / "world")
    assert world.go("fsdp2", 2, [2]) == {0: 0, 1: 0}, world.errors()
    path = world.run.checkpoints / "g0001-s00000002" / "rank00001.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 16
    path.write_bytes(data)
    world.next_segment(2, "g0001-s00000002")
    assert world.go("fsdp2", 4, [], "g0001-s00000002") == {0: 1, 1: 1}
    for rank in (0, 1):
        assert "rank 1: rank00001.safetensors: block 0" in (world.root / f"error-2-{rank}.txt").read_text()


def test_memory_of_the_same_layout_serves_a_restart(tmp_path):
    """Both writers keep their part, and the next two ranks read it from there."""
    world = World(tmp_path / "world", [{"point": "step.begin", "action": "kill", "step": 3, "rank": 1}])
    world.go("fsdp2", 4, [2], linger_seconds=60)
    world.next_segment(2, "g0001-s00000002")
    assert world.go("fsdp2", 4, [4], "g0001-s00000002", memory=True) == {0: 0, 1: 0}, world.errors()
    assert [world.result(rank)["from_memory"] for rank in (0, 1)] == [["rank00000.safetensors"], ["rank00001.safetensors"]]
    outcomes = [r["kind"] for r in read_records(world.run.segment(2) / "saves.jsonl").records]
    assert outcomes == ["sealed", "committed"]

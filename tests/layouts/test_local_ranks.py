"""Processes as ranks: one fails, all end; who asked ends, all end; nothing of one group is met in the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist

from headway.base.errors import ConfigError, RunError
from headway.parallel.local_ranks import TIMEOUT_SECONDS, in_new_process, on_ranks
from headway.rundir.processes import process_stat, session_members

pytestmark = pytest.mark.layouts


def sum_of_ranks(factor: int) -> tuple[int, torch.Tensor]:
    total = torch.tensor(float(factor * dist.get_rank()))
    dist.all_reduce(total)
    return os.getpid(), total


def test_every_task_has_processes_of_its_own():
    first, second = on_ranks(sum_of_ranks, 2, 10), on_ranks(sum_of_ranks, 3, 1)
    assert [float(total) for _, total in first + second] == [10, 10, 3, 3, 3]
    processes = [pid for pid, _ in first + second]
    assert len(set(processes)) == 5
    assert not any(process_stat(pid) for pid in processes)


def fail(how: str) -> None:
    if dist.get_rank() == 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ConfigError("seen", "rule", "way out") if how == "refused" else KeyError("there is none")
    dist.barrier()


@pytest.mark.parametrize(
    ("how", "said"),
    [("killed", "exit code -9"), ("refused", "rank 1 of 3: seen"), ("unforeseen", "KeyError: 'there is none'")],
)
def test_the_first_that_fails_ends_all_and_is_the_cause(how, said):
    began = time.monotonic()
    with pytest.raises(RunError) as caught:
        on_ranks(fail, 3, how)
    assert said in str(caught.value)
    assert time.monotonic() - began < TIMEOUT_SECONDS, "nobody waits for the time-out of a collective"


def raise_alone() -> None:
    assert not dist.is_initialized()
    raise ValueError("no")


def test_a_process_without_a_group():
    with pytest.raises(RunError, match=r"^ValueError: no"):
        in_new_process(raise_alone)


OWNER = """
import time
from headway.parallel.local_ranks import on_ranks
if __name__ == "__main__":
    on_ranks(time.sleep, 2, 600)
"""


def test_ranks_end_with_whoever_asked_for_them(tmp_path):
    (tmp_path / "owner.py").write_text(OWNER)
    owner = subprocess.Popen([sys.executable, str(tmp_path / "owner.py")], start_new_session=True)
    wait_for(lambda: len(session_members(owner.pid)) >= 4, "two ranks")  # beside the owner, who forks them, and who cleans up
    owner.kill()
    owner.wait()
    wait_for(lambda: not session_members(owner.pid), "everybody to end")


def wait_for(condition, what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.1)

"""Output that nobody reads holds up nobody: a stopped pager, a halted terminal."""

from __future__ import annotations

import json
import os
import sys
import threading
import time

import pytest

from headway.cli.main import is_lost_terminal, is_unheard
from headway.cli.output import print_json_line
from headway.cli.run import left_out_words
from headway.cli.unread import Outlet, unread_output

FAR_MORE_THAN_A_PIPE_HOLDS = 200


def row(number: int) -> dict:
    return {"kind": "step", "step": number, "filling": "x" * 4096}


def test_writing_goes_on_while_nobody_reads_and_nothing_is_lost(monkeypatch):
    reader, writer = os.pipe()
    monkeypatch.setattr(sys, "stdout", os.fdopen(writer, "w", encoding="utf-8"))
    done = threading.Event()

    def print_all() -> None:
        with sys.stdout, unread_output(lambda pieces: left_out_words(pieces, True)):
            for number in range(FAR_MORE_THAN_A_PIPE_HOLDS):
                print_json_line(row(number))
            done.set()

    threading.Thread(target=print_all, daemon=True).start()
    assert done.wait(20), "it waits for a reader"
    with open(reader) as file:
        steps = [json.loads(line)["step"] for line in file]
    assert steps == list(range(FAR_MORE_THAN_A_PIPE_HOLDS))


@pytest.mark.parametrize("as_json", [True, False])
def test_what_does_not_fit_is_left_out_whole_and_told(as_json):
    reader, writer = os.pipe()
    outlet = Outlet(writer, "utf-8", lambda pieces: left_out_words(pieces, as_json), most_bytes=200_000)
    for number in range(FAR_MORE_THAN_A_PIPE_HOLDS):
        outlet.write(json.dumps(row(number)))
        outlet.write("\n")
        outlet.flush()
    threading.Thread(target=lambda: (outlet.end(), os.close(writer)), daemon=True).start()
    with open(reader) as file:
        *kept, told = file.read().splitlines()
    steps = [json.loads(line)["step"] for line in kept]
    missed = FAR_MORE_THAN_A_PIPE_HOLDS - len(steps)
    assert missed > 0
    assert steps == list(range(len(steps)))
    if as_json:
        assert json.loads(told) == {"kind": "left_out", "records": missed}
    else:
        assert f"{missed:,} lines are left out" in told


def write_until_it_fails(outlet: Outlet) -> None:
    for _ in range(10_000):
        outlet.write("x")
        outlet.flush()
        time.sleep(0.001)


def test_a_reader_that_is_gone_is_an_error_and_ends_nothing_else():
    reader, writer = os.pipe()
    outlet = Outlet(writer, "utf-8", str)
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        write_until_it_fails(outlet)
    outlet.end()
    os.close(writer)


def test_output_in_memory_is_left_as_it_is(capsys):
    before = sys.stdout
    with unread_output(str):
        assert sys.stdout is before
        print_json_line({"kind": "step"})
    assert json.loads(capsys.readouterr().out) == {"kind": "step"}


def test_a_terminal_that_was_closed_is_met_like_a_closed_pipe(monkeypatch):
    assert is_unheard(BrokenPipeError(32, "pipe"))
    assert not is_unheard(OSError(5, "of a disk, without a name"))
    master, slave = os.openpty()
    assert not is_lost_terminal(slave)
    os.close(master)
    assert is_lost_terminal(slave)
    os.close(slave)
    monkeypatch.setattr("headway.cli.main.is_lost_terminal", lambda descriptor: descriptor == 1)
    assert is_unheard(OSError(5, "terminal"))


@pytest.mark.parametrize("error", [OSError(5, "disk", "/data/shard"), OSError(28, "full"), ValueError(5)])
def test_other_errors_are_told(error):
    assert not is_unheard(error)

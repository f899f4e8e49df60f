"""The checks of a node: they pass on this machine, and each fails on what it is there to find."""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np
import pytest

from headway.supervise import node_checks
from headway.supervise.doctor import check_node, devices_check, devices_left_out
from headway.supervise.node_checks import FAIL, LEFT_OUT, MIB, PASS, WARN


def test_a_quick_look_at_this_machine(tmp_path):
    report = check_node(tmp_path, quick=True)
    assert [check.name for check in report.checks] == ["arithmetic", "memory", "disk", "network", "clock", "limits"]
    assert report.may_join, report.reasons()
    assert report.host == socket.gethostname()
    assert all(check.measured and check.rule for check in report.checks)
    assert all(check.way_out for check in report.checks if check.verdict in (WARN, FAIL))
    assert list(tmp_path.iterdir()) == [], "the disk is left as it was"


def test_the_known_answer_is_that_of_plain_integers():
    """Python's own integers, without numpy."""
    side = node_checks.SIDE
    a = [[(i * side + j) * 2_654_435_761 % 1021 for j in range(side)] for i in range(side)]
    a = [[((i * side + j) * 2_654_435_761 + 12_345) % 1021 for j in range(side)] for i in range(side)]
    b = [[((i * side + j) * 40_503 + 977) % 1019 for j in range(side)] for i in range(side)]
    digest = node_checks.xxhash.xxh3_64()
    for _ in range(node_checks.ROUNDS):
        columns = list(zip(*b, strict=True))
        product = [[sum(x * y for x, y in zip(row, column, strict=True)) for column in columns] for row in a]
        digest.update(b"".join(value.to_bytes(8, "little") for row in product for value in row))
        b = [[(product[j][i] + b[i][j]) % 1019 for j in range(side)] for i in range(side)]
        a = [[value % 1021 for value in row] for row in product]
    assert digest.hexdigest() == node_checks.KNOWN_ANSWER


def test_a_core_that_computes_wrong_is_named(monkeypatch):
    honest = np.einsum

    def wrong(*given):
        product = honest(*given)
        product[3, 5] += 1
        return product

    monkeypatch.setattr(node_checks.np, "einsum", wrong)
    check = node_checks.known_answers()
    assert check.verdict == FAIL
    assert check.numbers["wrong_cores"]


def test_memory_that_changes_a_word_is_found(monkeypatch):
    honest = np.count_nonzero
    monkeypatch.setattr(node_checks.np, "count_nonzero", lambda x: honest(x) + 1)
    check = node_checks.memory(8 * MIB, 1.0)
    assert (check.verdict, check.numbers["wrong_words"] > 0) == (FAIL, True)


def test_memory_patterns_find_a_flipped_bit(monkeypatch):
    honest = np.bitwise_xor

    def flipping(a, b, out):
        honest(a, b, out=out)
        out[17] ^= np.uint64(1 << 40)

    monkeypatch.setattr(node_checks.np, "bitwise_xor", flipping)
    assert node_checks.memory(8 * MIB, 1.0).verdict == FAIL


def test_counted_errors_of_the_controller(monkeypatch):
    monkeypatch.setattr(node_checks, "_counted", lambda name: 3 if name == "ce_count" else 0)
    check = node_checks.memory(8 * MIB, 0.1)
    assert (check.verdict, "3 corrected errors" in check.measured) == (WARN, True)
    monkeypatch.setattr(node_checks, "_counted", lambda name: 1)
    assert node_checks.memory(8 * MIB, 0.1).verdict == FAIL


def test_a_disk_that_returns_other_bytes_has_failed(tmp_path, monkeypatch):
    honest = node_checks.os.posix_fadvise

    def rot(descriptor, *given):
        node_checks.os.pwrite(descriptor, b"x", 1000)
        honest(descriptor, *given)

    monkeypatch.setattr(node_checks.os, "posix_fadvise", rot)
    check = node_checks.disk(tmp_path, 2 * MIB)
    assert (check.verdict, check.numbers["same"]) == (FAIL, False)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written(tmp_path):
    check = node_checks.disk(tmp_path / "nowhere", MIB)
    assert check.verdict == FAIL
    assert "nowhere" in check.measured


def test_a_full_disk(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 10 * MIB})
    monkeypatch.setattr(node_checks.shutil, "disk_usage", lambda path: usage)
    assert node_checks.disk(tmp_path, MIB).verdict == FAIL


def test_a_loopback_that_changes_bytes(monkeypatch):
    monkeypatch.setattr(node_checks, "_through_loopback", lambda size, seconds: ("aa", "bb", 1e9, 1e-5))
    assert node_checks.network(MIB, 0.1).verdict == FAIL


def test_no_loopback(monkeypatch):
    def down(*given, **named):
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(node_checks.socket, "create_server", down)
    check = node_checks.network(MIB, 0.1)
    assert (check.verdict, "ip link set lo up" in check.way_out) == (FAIL, True)


def test_F3_a_clock_that_nobody_keeps_is_a_warning_and_no_more(monkeypatch):
    monkeypatch.setattr(node_checks, "_kernel_time", lambda: {"synchronised": False})
    check = node_checks.clock(0.05)
    assert check.verdict == WARN
    assert "No decision of a run compares clocks of hosts" in check.way_out
    monkeypatch.setattr(node_checks, "_kernel_time", lambda: {"synchronised": True})
    monkeypatch.setattr(node_checks, "_both_clocks", iter([(0, 0), (10**9, 10**9)]).__next__)
    assert node_checks.clock(0.05).verdict == PASS


def test_few_open_files(monkeypatch):
    monkeypatch.setattr(node_checks.resource, "getrlimit", lambda which: (128, 1024))
    check = node_checks.limits()
    assert (check.verdict, "ulimit -n" in check.way_out) == (FAIL, True)


def test_devices_as_the_engine_found_them(tmp_path):
    answers = [{"device": "cuda:3", "dtype": "bfloat16", "products": 9, "wrong": 2}]
    check = devices_check([{"device": "cpu", "dtype": "float32", "products": 9, "wrong": 0}, *answers])
    assert (check.verdict, check.measured) == (FAIL, "cuda:3 bfloat16: 2 products wrong")
    report = check_node(tmp_path, quick=True, devices=lambda: devices_left_out("no torch"))
    assert report.checks[-1].verdict == LEFT_OUT
    assert report.may_join


@pytest.mark.e2e
def test_the_engine_finds_the_cpu_right():
    from headway.cli.engine import ask_engine

    check = devices_check(ask_engine("doctor", ["--seconds", "0.1"]))
    assert check.verdict == PASS, check
    assert {answer["dtype"] for answer in check.numbers["answers"]} == {"float32", "float64", "bfloat16", "float16"}


def test_the_verb_leaves_devices_out_where_torch_is_absent(monkeypatch, capsys, tmp_path):
    import importlib.util

    from headway.cli.main import run_guarded

    honest = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else honest(name, *rest))
    assert run_guarded(["doctor", "--directory", str(Path(tmp_path))]) == 0
    said = capsys.readouterr().out
    assert "left out  devices     PyTorch is not installed here" in said
    assert "right on" in said

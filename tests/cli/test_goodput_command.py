"""``headway goodput``: what it prints and writes, by its exit code too."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "report"))

from synthetic_run import Story, tell

from headway.cli.main import run_guarded

STORY = Story(steps=60, kill_step=30, restored_step=20, plan=False, peak_flops="1P")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("goodput") / "run"
    tell(root, STORY)
    return root


def test_everything_for_people(told: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(["goodput", str(told)]) == 0
    text = capsys.readouterr().out
    for words in (
        "rolled back",
        "updates that a later restore went back behind",
        "committed: in the newest checkpoint",
        "device nanoseconds",
        "goodput (Headway) =",
        "ML productivity goodput (Google) =",
        "ETTR (Meta) =",
        "effective training time rate (MegaScale) =",
        "MFU end-to-end",
        "dense, as the deployment states it",
        "interval    ",
        "in force",
        "host memory",
    ):
        assert words in text, words
    labels = [line for line in text.splitlines() if line.startswith("productive")]
    assert [" at the good pace " in line for line in labels] == [False, True], "each of the two has a name of its own"


def test_json_sums_exactly_and_files_are_named(told: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(["goodput", str(told), "--out", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    ledger, capacity = facts["ledger"], facts["capacity"]
    assert sum(ledger["categories"].values()) == ledger["total_ns"] > 0
    assert sum(capacity["categories_device_ns"].values()) == capacity["total_device_ns"]
    assert [Path(name).name for name in facts["files"]] == ["goodput.png", "goodput.html", "goodput.json"]
    assert (tmp_path / "goodput.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "goodput.html").read_text()
    assert "<svg" in page
    assert "http" not in page.replace("http://www.w3.org", ""), "it needs no network"
    assert json.loads((tmp_path / "goodput.json").read_text())["ledger"] == ledger


def test_G2_an_impossible_utilisation_is_an_alarm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tell(tmp_path / "run", replace(STORY, peak_flops="1G"))
    assert run_guarded(["goodput", str(tmp_path / "run")]) == 1
    assert "ALARM: a utilisation of" in capsys.readouterr().out


def test_G2_without_a_peak_there_is_no_mfu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tell(tmp_path / "run", replace(STORY, peak_flops=None))
    assert run_guarded(["goodput", str(tmp_path / "run")]) == 0
    text = capsys.readouterr().out
    assert "MFU and HFU are unknown" in text
    assert "never borrowed" in text


def test_names_that_a_terminal_or_a_browser_would_obey_are_only_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tell(tmp_path / "run", replace(STORY, hostile="<script>\x1b[31m"))
    assert run_guarded(["goodput", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    assert "\x1b" not in capsys.readouterr().out
    page = (tmp_path / "out" / "goodput.html").read_text()
    assert "<script>" not in page


def test_a_run_that_never_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tell(tmp_path / "run", replace(STORY, kill_step=None))
    for path in run.events.iterdir():
        path.unlink()
    assert run_guarded(["goodput", str(run.root), "--out", str(tmp_path / "out")]) == 0
    assert "no time is recorded yet" in capsys.readouterr().out

"""The page of measured figures: ratios only, with the machine, and a word where the machine was busy."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    specification = importlib.util.spec_from_file_location("bench_run", ROOT / "bench" / "run.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


FIGURES = {
    "save_over_memcpy": 6.99,
    "bytes": 1000,
    "shapes": [{"name": "demo", "share_of_gemm": 0.45, "tokens_per_second": 9000.0}],
    "shared": True,
}


def result(busy: float) -> dict:
    machine = {"cpu": "a chip", "cores": 2, "system": "Linux", "busy_before": busy}
    return {
        "name": "x",
        "command": "python bench/x.py",
        "date": "2026-01-01",
        "machine": machine,
        "versions": {"python": "3.11"},
        "figures": FIGURES,
    }


def test_ratios_are_found_at_any_depth(bench):
    assert bench.ratios(FIGURES) == [("save_over_memcpy", 6.99), ("shapes.demo.share_of_gemm", 0.45)]


def test_the_page_says_where_and_how(bench):
    text = bench.page([result(busy=0.02)])
    assert "| shapes.demo.share of gemm | 0.45 |" in text
    assert "2 cores of a chip" in text
    assert "`python bench/x.py`" in text
    assert "busy" not in text
    assert "busy" in bench.page([result(busy=0.6)])


def test_the_machine_is_described(bench):
    assert bench.machine()["cores"] >= 1
    assert {"python", "headway", "numpy"} <= set(bench.versions())

"""The benchmark for accelerators where there is none: it imports, refuses, and its dry run takes the whole path on a CPU."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
import time
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

BFLOAT16 = 1e-3
"""Two orders of rounding, over three updates."""
BENCH = Path(__file__).resolve().parents[1] / "bench"
FLEX = "headway bfloat16 documents flex"
"""Flex attention has no backward on a CPU: the one variant of the dry run that fails, in words."""


@pytest.fixture
def device(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("device")


def setting(device: ModuleType, seconds: float = 20.0):
    return device.dry_setting(Namespace(variant_seconds=seconds, budget_seconds=100.0))


def test_a_failure_is_recorded_and_ends_nothing(device):
    def fail() -> dict:
        raise RuntimeError("out of memory")

    assert device.guarded(fail, setting(device), time.monotonic() + 60) == {"failed": "RuntimeError: out of memory"}


def test_a_variant_ends_with_its_time(device):
    def wait() -> dict:
        while True:
            time.sleep(0.01)

    found = device.guarded(wait, setting(device, seconds=0.2), time.monotonic() + 60)
    assert found["failed"].startswith("OutOfTime")
    assert device.guarded(wait, setting(device), time.monotonic()) == {"skipped": "no time left"}


@pytest.mark.parametrize(
    ("name", "chip"),
    [("NVIDIA H100 80GB HBM3", "H100-SXM"), ("NVIDIA H200", "H200-SXM"), ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB")],
)
def test_chips_are_found_by_their_drivers_names(device, name, chip):
    assert device.chip_called(name).name == chip


def test_an_unknown_chip_has_no_utilisation(device, capsys):
    assert device.chip_called("Abacus 9000") is None
    assert "Abacus 9000" in capsys.readouterr().err
    assert device.utilisation(device.VARIANTS[0], setting(device).shapes[0], 1.0, None) == {}


def test_the_shape_has_a_billion_parameters(device):
    chosen = device.device_setting(Namespace(variant_seconds=40.0, budget_seconds=280.0))
    assert all(1.0e9 < device.count_parameters(shape.model).total < 1.1e9 for shape in chosen.shapes)
    assert {shape.sequence_length for shape in chosen.shapes} == {2048, 4096}


@pytest.mark.parametrize(
    "variant", ["causal eager", "masks eager", *(pytest.param(name, marks=pytest.mark.slow) for name in ("causal", "masks"))]
)
def test_what_is_put_in_place_computes_what_the_engine_does(device, variant):
    """Losses of three steps: torch's attention and a rotation that compiles, against the engine's step on a CPU."""
    here = setting(device)
    shape, attention = here.shapes[0], variant.split()[0]
    chosen = device.Variant(side="headway", attention=attention, compiled="eager" not in variant)
    torch.manual_seed(0)
    with ExitStack() as patches:
        step = device.headway_update(shape, chosen, here, patches)
        found = [step() for _ in range(3)]
    torch.manual_seed(0)
    compute = device.ComputeModel(device.filled(shape, "cpu"), device.PrecisionSpec("bfloat16"))
    engine = device.update_of(compute, shape, device.mean_tokens(shape, attention))
    assert found == pytest.approx([engine() for _ in range(3)], rel=BFLOAT16)


def test_without_a_device_it_says_so(device, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device.main([]) == 3
    assert "--dry-run" in capsys.readouterr().err


@pytest.mark.slow
def test_the_dry_run_measures_every_variant():
    done = subprocess.run([sys.executable, BENCH / "device.py", "--dry-run"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["dry_run"]
    assert figures["update"]["speed_over_default"] > 0
    assert figures["loss"]["time_over_cross_entropy"] > 0
    for variant in figures["training"]:
        if variant["name"].startswith(FLEX):
            assert "FlexAttention" in variant["failed"]
        elif "float8" not in variant["name"] or has_torchao():
            assert variant["tokens_per_second"] > 0, variant


def has_torchao() -> bool:
    return importlib.util.find_spec("torchao") is not None

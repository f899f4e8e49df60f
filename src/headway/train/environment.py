"""What bitwise repetition depends on (CONTRACTS section 6): recorded at start, compared at resume."""

from __future__ import annotations

import platform

import numpy as np
import torch

from headway.base.code import code_version


def determinism_environment(layout: str = "1 process") -> dict[str, str | int]:
    """The facts under which a resume is promised to be bit-identical."""
    return {
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "onednn": str(torch.backends.mkldnn.is_available()),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "layout": layout,
        "code": code_version(),
    }


def full_environment(layout: str = "1 process") -> dict[str, str | int]:
    """For the record and the report."""
    return determinism_environment(layout) | {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": platform.platform(),
        "processor": _processor(),
    }


def differences(then: dict, now: dict) -> list[str]:
    """What changed since the checkpoint was written, of all that a bit-identical resume depends on."""
    return [f"{key}: {then.get(key)} -> {now.get(key)}" for key in determinism_environment() if then.get(key) != now.get(key)]


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), platform.processor())
    except OSError:
        return platform.processor() or platform.machine()

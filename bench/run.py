"""Runs the benchmarks and stores their figures: ``make bench``.

Each benchmark is a script beside this one that prints one JSON object. All of them compare within one run, so the figures
that count are ratios; rates are kept beside them with the machine they were measured on.

    bench/NAME.py --JSON--> docs/results/NAME.json + machine, versions, date, command
                            docs/results/README.md   a table of all stored results
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
BENCHMARKS = (
    "stream",
    "tokenise",
    "build",
    "input_wait",
    "training",
    "model_family",
    "parallel",
    "checkpoint",
    "supervise",
    "recovery",
    "plan_accuracy",
    "plan_memory",
    "goodput",
)
LONG = ("mup_transfer", "ablations", "soak")
"""An hour, a quarter of one, and two thirds: measured when they are named."""
PACKAGES = (
    "headway",
    "torch",
    "numpy",
    "scipy",
    "transformers",
    "accelerate",
    "litgpt",
    "safetensors",
    "tiktoken",
    "tokenizers",
    "xxhash",
)
RATIO_WORDS = ("share", "ratio", "over", "fraction", "times", "vs", "percentage", "bias", "median", "worst")
"""A figure whose name holds one of these words is a ratio: it goes into the table."""

PLAN_SPEED = ("speed.beacon_plan_ms", "speed.search_16384_s", "speed.simulate_1000_runs_s")

RATES = (
    "window_batch_mtok_per_s",
    "numpy_plain_gather_mtok_per_s",
    "resume_ms",
    "start_s",
    "first_wait_ms",
    "step_ms",
    "longest_restart_seconds_for_97_percent",
    "latest_silent_fault_seen_seconds_for_97_percent",
    *PLAN_SPEED,
)
"""Rates and times that the table shows all the same, beside the ratio that they belong to."""

BUSY = 0.1


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def cpu_model() -> str:
    """Name of the processor as the kernel gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def busy_share(seconds: float = 1.0) -> float:
    """Share of all cores' time that others use at this moment; 0 where the kernel does not tell."""

    def times() -> tuple[int, int]:
        fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]

    try:
        total, idle = times()
        time.sleep(seconds)
        total_after, idle_after = times()
    except OSError:
        return 0.0
    return 1 - (idle_after - idle) / max(1, total_after - total)


def machine() -> dict[str, Any]:
    """What the figures depend on, apart from the code."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
        "busy_before": round(busy_share(), 3),
    }


def measure(name: str, arguments: list[str]) -> dict[str, Any]:
    """Run one benchmark in a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name(f"{name}.py")), *arguments]
    before = machine()
    print(f"{name}: running ...", file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    if done.returncode != 0:
        raise SystemExit(f"bench/{name}.py failed with exit code {done.returncode}")
    return {
        "kind": "benchmark",
        "schema_version": 1,
        "name": name,
        "date": datetime.now(UTC).date().isoformat(),
        "command": " ".join(["python", f"bench/{name}.py", *arguments]),
        "machine": before,
        "versions": versions(),
        "figures": json.loads(done.stdout),
    }


def ratios(figures: Any, path: str = "") -> list[tuple[str, float]]:
    """Every number whose name says that it is a ratio, and the rates beside them, with their paths."""
    if isinstance(figures, dict):
        return [found for key, value in figures.items() for found in ratios(value, f"{path}.{key}" if path else key)]
    if isinstance(figures, list):
        return [found for index, value in enumerate(figures) for found in ratios(value, f"{path}.{label(value, index)}")]
    words = path.rpartition(".")[2].split("_")
    is_number = isinstance(figures, int | float) and not isinstance(figures, bool)
    is_shown = path in RATES or any(word in RATIO_WORDS for word in words)
    return [(path, float(figures))] if is_number and is_shown else []


def label(value: Any, index: int) -> str:
    """What a list's element calls itself."""
    return str(value.get("name") or value.get("shape") or index) if isinstance(value, dict) else str(index)


def page(results: list[dict[str, Any]]) -> str:
    """The table of all results."""
    lines = [
        "# Measured figures",
        "",
        "Ratios within one run, and a few rates beside them; `make bench` measures them anew. The rest is in the JSON files.",
        "",
    ]
    for result in results:
        here = result["machine"]
        lines += [
            f"## {result['name']}",
            "",
            f"`{result['command']}`, {result['date']}, {here['cores']} cores of {here['cpu']}.",
            "",
        ]
        if here["busy_before"] > BUSY:
            lines += [f"**Measured on a busy machine** ({here['busy_before']:.0%} of it used by others): measure again.", ""]
        lines += ["| figure | value |", "|---|---:|"]
        lines += [f"| {path.replace('_', ' ')} | {value:.4g} |" for path, value in ratios(result["figures"])]
        used = ", ".join(f"{package} {number}" for package, number in result["versions"].items())
        lines += ["", f"With {used}. All figures: [{result['name']}.json]({result['name']}.json).", ""]
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Run the benchmarks and store their figures under docs/results/.")
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, *LONG, []], help="which ones; default: all but the long ones")
    asked = parser.parse_args(arguments)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in asked.names or BENCHMARKS:
        result = measure(name, [])
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
        for path, value in ratios(result["figures"]):
            print(f"  {path.replace('_', ' ')}: {value:.4g}")
    stored = [json.loads(path.read_text()) for name in (*BENCHMARKS, *LONG) if (path := RESULTS / f"{name}.json").exists()]
    (RESULTS / "README.md").write_text(page(stored))
    print(f"stored under {RESULTS.relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Fits the constants of the step-time model, and judges them on chips and model families that the fit never saw.

    python bench/fit_step_time.py [--reference DIRECTORY] [--write]

``--write`` renews ``src/headway/plan/step/fitted.py``. Prints JSON: constants, and the errors of every kind of judging.

    all                      fitted on mosaic and vtrain together, judged on them                 only a check of the form
    leave one family out     each mosaic size, each vtrain model                                  what a new model meets
    leave one chip out       A100 (vtrain is all A100, so it is left out whole), H100             what a new chip meets
    never fitted             torchtitan, published, outside (``plan_outside.py``)                 what a user meets

Links are not fitted on steps: their curve is fitted on measured collectives. The loss is soft beyond 5 %, so that single rows
that make no physical sense (a micro-batch twice as large that takes twice as long per token) pull on nothing.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from headway.plan.step.fitted import Constants
from headway.plan.step.step_time import step_time
from plan_outside import outside
from plan_rows import Row, mosaic, published, torchtitan, vtrain

ROOT = Path(__file__).resolve().parents[1]
FITTED_FILE = ROOT / "src" / "headway" / "plan" / "step" / "fitted.py"
SOFT = 0.05
NOTHING = 1e-9
"""Smaller is what the fit leaves of a constant at its lower bound."""

BOUNDS = {
    "gemm": (0.7, 1.0),
    "operand": (0.1, 1.0),
    "flash": (20.0, 120.0),
    "memory": (0.5, 0.95),
    "contention": (0.0, 0.8),
    "stragglers": (0.0, 0.03),
    "hop_seconds": (0.0, 3e-5),
}
"""What is fitted on steps, and what each could be at all: shares of a sheet's figure, a hop of some microseconds."""


def predicted(row: Row, constants: Constants) -> float:
    return step_time(row.work, row.layout, row.cluster, constants).seconds


def errors(rows: Sequence[Row], constants: Constants) -> np.ndarray:
    """predicted / measured - 1, per row."""
    return np.array([predicted(row, constants) / row.seconds - 1 for row in rows])


def fit(rows: Sequence[Row], start: Constants) -> Constants:
    """Constants that fit the logarithm of the steps' seconds."""
    low, high = (np.array(side) for side in zip(*BOUNDS.values(), strict=True))

    def constants(x: np.ndarray) -> Constants:
        return replace(start, **dict(zip(BOUNDS, (low + x * (high - low)).tolist(), strict=True)))

    def residuals(x: np.ndarray) -> list[float]:
        return [math.log(predicted(row, constants(x)) / row.seconds) for row in rows]

    first = np.clip([(getattr(start, name) - a) / (b - a) for name, (a, b) in BOUNDS.items()], 0.05, 0.95)
    found = least_squares(residuals, first, bounds=(0, 1), loss="soft_l1", f_scale=SOFT, diff_step=1e-3, xtol=1e-5, ftol=1e-6)
    return constants(found.x)


def families_left_out(rows: Sequence[Row], start: Constants) -> dict[str, np.ndarray]:
    """Errors of each family's rows, with constants that were fitted without them."""

    def key(row: Row) -> str:
        return f"{row.source} {row.family}"

    return {
        group: errors([row for row in rows if key(row) == group], fit([row for row in rows if key(row) != group], start))
        for group in dict.fromkeys(map(key, rows))
    }


def summary(found: np.ndarray) -> dict[str, float]:
    """In per cent."""
    sizes = 100 * np.abs(found)
    return {
        "rows": len(found),
        "mean_absolute_percentage_error": round(float(sizes.mean()), 2),
        "median": round(float(np.median(sizes)), 2),
        "worst": round(float(sizes.max()), 1),
        "signed_bias": round(float(100 * found.mean()), 2),
    }


def joined(parts: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate(list(parts))


def spread(groups: Sequence[np.ndarray], outside: float = 0.1) -> tuple[float, float]:
    """Bounds that leave ``outside`` of the ratios out, half on each side, every group with the same weight."""
    values = np.concatenate(list(groups))
    weights = np.concatenate([np.full(len(group), 1 / (len(group) * len(groups))) for group in groups])
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    low, high = (values[order][np.searchsorted(reached, share)] for share in (outside / 2, 1 - outside / 2))
    return round(float(low), 2), round(float(high), 2)


def at_bound(name: str, value: float) -> bool:
    low, high = BOUNDS[name]
    return min(value - low, high - value) < 1e-3 * (high - low)


# --- links ----------------------------------------------------------------------------------------------------------------

SMALLEST_PAYLOAD = 2**18
"""Below, the slowest of the systems shows bandwidths that are artefacts of its measurement (0.01 GB/s)."""


def fit_links(reference: Path) -> dict[str, float]:
    """Latency of links and network, and the power of the curve, over the measured all-reduces of several systems."""
    curves: dict[tuple[str, int, int], list[tuple[float, float]]] = {}
    with (reference / "plan" / "network_busbw_measured.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            if line["collective"] == "all_reduce" and float(line["payload_bytes"]) >= SMALLEST_PAYLOAD:
                key = (line["system"], int(line["ranks"]), int(line["nodes"]))
                curves.setdefault(key, []).append((float(line["payload_bytes"]), float(line["busbw_GBps"]) * 1e9))
    systems = {key: np.array(points) for key, points in curves.items() if len(points) > 5}

    def residuals(x: np.ndarray) -> np.ndarray:
        parts = []
        for place, ((_, ranks, nodes), points) in enumerate(systems.items()):
            sent = 2 * (ranks - 1) / ranks * points[:, 0]
            ideal = sent / (points[:, 1].max() * math.exp(x[3 + place]))
            tau = math.exp(x[0] if nodes == 1 else x[1])
            parts.append(np.log(ideal * (1 + (tau / ideal) ** x[2]) * points[:, 1] / sent))
        return np.concatenate(parts)

    found = least_squares(residuals, [math.log(1e-4), math.log(2e-4), 0.9] + [0.0] * len(systems))
    return {
        "link_tau": float(math.exp(found.x[0])),
        "network_tau": float(math.exp(found.x[1])),
        "tau_power": float(found.x[2]),
        "error_percent": round(100 * float(np.abs(found.fun).mean()), 1),
    }


# --- all together -----------------------------------------------------------------------------------------------------------


def judge(reference: Path) -> dict[str, Any]:
    """Constants and every error. Takes about a minute on one core."""
    links = fit_links(reference)
    start = replace(Constants(), **{name: links[name] for name in ("link_tau", "network_tau", "tau_power")})
    steps = {"mosaic": mosaic(reference), "vtrain": vtrain(reference)}
    rows = [*steps["mosaic"], *steps["vtrain"]]
    constants = fit(rows, start)
    families = families_left_out(rows, start)
    chips = {chip: fit([row for row in rows if row.chip != chip], start) for chip in ("h100_80gb", "a100_80gb")}

    def of_source(source: str) -> np.ndarray:
        return joined(found for name, found in families.items() if name.startswith(source))

    def by_family(found: Sequence[Row]) -> list[float]:
        waiting = {name: iter(values) for name, values in families.items()}
        return [next(waiting[f"{row.source} {row.family}"]) for row in found]

    others = {"torchtitan": torchtitan(reference), "published": published(), "outside": outside()}
    never = {name: errors(found, constants) for name, found in others.items()}

    def on_chip(chip: str) -> np.ndarray:
        return errors([row for row in steps["mosaic"] if row.chip == chip], chips[chip])

    by_chip = joined(map(on_chip, chips))
    judged = {
        "mosaic, leave one chip out": by_chip,
        "mosaic, leave one family out": of_source("mosaic"),
        "vtrain, leave one chip out": errors(steps["vtrain"], chips["a100_80gb"]),
        "vtrain, leave one family out": of_source("vtrain"),
        "torchtitan steps, never fitted": never["torchtitan"],
        "published steps, never fitted": never["published"],
        "steps outside the reference data, never fitted": never["outside"],
    }
    sources = {"mosaic": by_chip, "vtrain": errors(steps["vtrain"], chips["a100_80gb"]), **never}
    low, high = spread([1 / (1 + found) for found in sources.values()])
    return {
        "constants": asdict(constants),
        "links_error_percent": links["error_percent"],
        "at_their_bounds": [name for name in BOUNDS if at_bound(name, getattr(constants, name))],
        "spread": [low, high],
        "inside_spread_share": {
            name: round(float(np.mean((low <= 1 / (1 + found)) & (1 / (1 + found) <= high))), 2)
            for name, found in sources.items()
        },
        "in_sample": {name: summary(errors(found, constants)) for name, found in steps.items()},
        "judged": {name: summary(found) for name, found in judged.items()},
        "left_out_rows_mape_median_worst_bias": [
            [name, *summary(found).values()]
            for name, found in [*families.items(), *((f"mosaic {chip}", on_chip(chip)) for chip in chips)]
        ],
        "rows_seconds_error_percent_convention": {
            **{f"{name}, family left out": table(found, by_family(found)) for name, found in steps.items()},
            **{f"{name}, never fitted": table(found, never[name]) for name, found in others.items()},
        },
    }


def table(rows: Sequence[Row], found: Iterable[float]) -> list[list[str | float]]:
    """Name, measured seconds, error in per cent, convention of the published rate where seconds were derived from one."""
    return [
        [row.name, round(row.seconds, 4), round(100 * float(error), 1), row.convention]
        for row, error in zip(rows, found, strict=True)
    ]


TEMPLATE = '''"""Constants of the models of computation and communication. ``bench/fit_step_time.py --write`` renews this file.

Fitted on 247 published step times of FSDP (H100, A100) and Megatron (A100); links on measured collectives. gemm and
network_efficiency are at their bounds: products and networks reach what the table says. Errors: docs/results/plan_accuracy.json.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Shares are of what the chip's table says. None is of one chip, model or layout."""

    gemm: float = {gemm}  # of the achievable rate, for products without end
    operand: float = {operand}  # of memory bandwidth, for the operands of products
    flash: float = {flash}  # FLOP of attention per byte/s of memory bandwidth, first generation
    memory: float = {memory}  # of memory bandwidth, for elementwise passes
    contention: float = {contention}  # of a hidden collective's time is lost all the same: it takes cores and bandwidth
    stragglers: float = {stragglers}  # of the step, per doubling of domains; 0: these steps show none beyond hops
    launch_seconds: float = {launch_seconds}  # of the host per block and pass: assumed, some forty kernels of ten microseconds
    link_efficiency: float = {link_efficiency}  # measured rings: 0.78 on A100, 0.81 on H200
    network_efficiency: float = {network_efficiency}  # measured: 382 of 400 GB/s between four nodes of B200
    link_tau: float = {link_tau}
    network_tau: float = {network_tau}
    tau_power: float = {tau_power}
    hop_seconds: float = {hop_seconds}


FITTED = Constants()
SPREAD = ({low}, {high})
"""Nine of ten measured steps lie within, as factors of the prediction. Five sources weigh the same: FSDP and Megatron on a chip
that the fit left out, torchtitan, published runs, and steps of chips and models beyond the reference data."""
'''


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = os.environ.get("HEADWAY_REFERENCE", str(ROOT.parent / "shared" / "reference"))
    parser.add_argument("--reference", type=Path, default=Path(default))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    found = judge(options.reference)
    if options.write:
        low, high = found["spread"]
        rounded = {name: float(f"{value}") if value > NOTHING else 0.0 for name, value in found["constants"].items()}
        FITTED_FILE.write_text(TEMPLATE.format(**rounded, low=low, high=high))
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    main()

"""Whether a node is fit to train: known answers, memory, disk, network, clock, limits. Before it joins, and when asked.

    check_node(directory)               about 10 s: headway doctor
    check_node(directory, quick=True)   at most about 2 s: before a node joins a run

Arithmetic of devices needs torch: the caller hands in what the engine found (``python -m headway.engine doctor``), or it is
said to be left out.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headway.base.clocks import SystemClock
from headway.supervise.node_checks import (
    FAIL,
    LEFT_OUT,
    MIB,
    PASS,
    WARN,
    Check,
    clock,
    disk,
    known_answers,
    limits,
    memory,
    network,
)

_ORDER = (PASS, LEFT_OUT, WARN, FAIL)
DEVICE_RULE = "matrix products of whole numbers on each device and in each number format equal the exact result to the bit"
DEVICE_WAY_OUT = "take the device out of service; results of runs on it are in doubt"


@dataclass(frozen=True, kw_only=True)
class Report:
    """``checks``: in the order in which they ran."""

    host: str
    boot_id: str
    checks: tuple[Check, ...]
    seconds: float

    @property
    def verdict(self) -> str:
        """The worst of all; what was left out counts as passed."""
        worst = max((check.verdict for check in self.checks), key=_ORDER.index, default=PASS)
        return PASS if worst == LEFT_OUT else worst

    @property
    def may_join(self) -> bool:
        return self.verdict != FAIL

    def reasons(self) -> str:
        """Why it may not; empty: it may."""
        return "; ".join(f"{check.name}: {check.measured}" for check in self.checks if check.verdict == FAIL)

    def to_json(self) -> dict[str, Any]:
        checks = [asdict(check) for check in self.checks]
        return {
            "host": self.host,
            "boot_id": self.boot_id,
            "verdict": self.verdict,
            "seconds": round(self.seconds, 3),
            "checks": checks,
        }


def check_node(directory: Path, *, quick: bool = False, devices: Callable[[], Check] | None = None) -> Report:
    """``directory``: where this node is to write. ``devices``: the check of what torch computes; None: it is left out."""
    began = time.monotonic()
    checks = [
        known_answers(),
        memory(32 * MIB if quick else 512 * MIB, 0.2 if quick else 2.0),
        disk(directory, 4 * MIB if quick else 128 * MIB),
        network(32 * MIB if quick else 512 * MIB, 0.2 if quick else 1.5),
        clock(0.2 if quick else 1.0),
        limits(),
    ]
    if devices is not None:
        checks.append(devices())
    elif not quick:
        checks.append(devices_left_out("it was not asked for"))
    host, boot_id = socket.gethostname(), SystemClock().stamp().boot_id
    return Report(host=host, boot_id=boot_id, checks=tuple(checks), seconds=time.monotonic() - began)


def devices_left_out(why: str) -> Check:
    return Check(name="devices", verdict=LEFT_OUT, measured=why, rule=DEVICE_RULE)


def devices_check(answers: Sequence[dict[str, Any]]) -> Check:
    """From what the engine found: {device, dtype, products, wrong, error?} each."""
    bad = [one for one in answers if one["wrong"] or one.get("error")]
    names = sorted({one["device"] for one in answers})
    measured = f"right in {sum(one['products'] for one in answers):,} products on {', '.join(names)}"
    if bad:
        told = [f"{one['device']} {one['dtype']}: {one.get('error') or str(one['wrong']) + ' products wrong'}" for one in bad]
        measured = "; ".join(told)
    return Check(
        name="devices",
        verdict=FAIL if bad else PASS,
        measured=measured,
        rule=DEVICE_RULE,
        way_out=DEVICE_WAY_OUT if bad else "",
        numbers={"answers": list(answers)},
    )

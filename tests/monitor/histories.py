"""Tells histories of a run in memory, and keeps its own account of where the time went.

The teller moves one clock; ``real_ns`` is the axis of its account (it is never set back here), so the truth is computed
without boot ids, offsets and splits, which is what the ledger has to get right.
"""

from __future__ import annotations

from collections import Counter

from headway.base.clocks import FakeClock
from headway.base.digests import digest_json
from headway.rundir.metrics import is_kept, last_kept_steps
from headway.rundir.segments import Segment, current_chain

TOKENS = 100
MS = 1_000_000


class History:
    """Events, rows by segment and segments, as the readers of ``rundir`` would give them."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.events: list[dict] = []
        self.steps: dict[int, list[dict]] = {}
        self.segments: list[Segment] = []
        self.truth: Counter[str] = Counter()
        self.accounted_ns = self.first_ns = self.clock.real_ns
        self.lost, self.remote = False, False
        self.previous_ns: int | None = None

    # -- time

    def advance(self, ns: int) -> None:
        self.clock.boot_ns += ns
        self.clock.real_ns += ns

    def account(self, category: str) -> None:
        self.truth[category] += self.clock.real_ns - self.accounted_ns
        self.accounted_ns = self.clock.real_ns

    def reboot(self, gap_ns: int) -> None:
        self.advance(gap_ns)
        self.clock.boot_id += "'"
        self.clock.boot_ns = 7

    # -- the supervisor

    def event(self, kind: str, **fields) -> None:
        self.events.append({"kind": kind, "stamp": self.clock.stamp().to_json(), **fields})

    def open(self, closes: str = "unknown", amid_rows: bool = False) -> None:
        previous = None
        if self.events:
            last, same = self.events[-1], self.events[-1]["stamp"]["boot_id"] == self.clock.boot_id
            field = "boot_ns" if same else "real_ns"
            gap = self.clock.stamp().to_json()[field] - last["stamp"][field]
            previous = {"digest": digest_json(last), "gap_ns": gap, "clock": "boottime" if same else "realtime"}
            if not amid_rows:
                self.account(closes)
        self.event("open", epoch=len(self.events) + 1, previous=previous, **({"closes": closes} if previous else {}))

    def launch(self, parent: int | None, restored: int, ns: int = 3 * MS) -> int:
        self.advance(ns)
        first = not self.segments
        self.account("provision" if first else "reconfigure")
        number = len(self.segments) + 1
        self.segments.append(Segment(number, parent, restored, None, "", "automatic", 1, {}))
        self.event("launch", segment=number, pid=1, closes="provision" if first else "reconfigure")
        self.steps[number], self.lost, self.previous_ns = [], False, None
        return number

    def exit(self, ns: int, progress_ns: int | None = None) -> None:
        self.advance(ns)
        if self.remote and progress_ns is not None:
            self.truth["unknown"] += progress_ns - self.accounted_ns
            self.accounted_ns = progress_ns
        silent = self.clock.real_ns - (progress_ns or self.clock.real_ns)
        self.account("detection_to_stop")
        self.event(
            "exit", segment=len(self.segments), closes="detection_to_stop", last_progress_boot_ns=self.clock.boot_ns - silent
        )

    def hang(self, ns: int) -> None:
        self.advance(ns)
        self.account("hang")
        self.event("hang", segment=len(self.segments), closes="hang", last_progress_boot_ns=self.clock.boot_ns - ns)

    # -- the trainer

    def row(self, kind: str, parts: list[tuple[str, int]], torn: bool = False, **fields) -> None:
        """``torn``: the line does not survive; its time goes to whatever closes next."""
        if not torn and not self.remote and self.lost:
            self.account("unknown")
        for category, ns in parts:
            self.advance(ns)
            if not torn and not self.remote:
                self.account(category)
        self.lost = torn
        stamp = self.clock.stamp().to_json()
        if self.remote:
            stamp |= {"boot_id": "elsewhere", "boot_ns": stamp["boot_ns"] * 3 + 11}
        split = {category: ns for category, ns in parts if ns} if kind != "start" else None
        if not torn:
            self.steps[len(self.segments)].append(
                {"kind": kind, "stamp": stamp, **({"split": split} if split is not None else {}), **fields}
            )

    def step(self, number: int, stall_ns: int, work_ns: int, torn: bool = False) -> None:
        self.row(
            "step", [("data_stall", stall_ns), ("productive", work_ns)], torn, step=number, tokens=number * TOKENS, targets=TOKENS
        )

    # -- the end

    @property
    def chain(self) -> list[Segment]:
        return current_chain(self.segments)

    def expected(self) -> dict[str, int]:
        """The truth after relabelling."""
        truth, last = Counter(self.truth), last_kept_steps(self.chain)
        for segment, rows in self.steps.items():
            for row in rows:
                if row["stamp"]["boot_id"] != "elsewhere" and not is_kept(row, last.get(segment, -1)):
                    for category in ("productive", "data_stall"):
                        ns = row.get("split", {}).get(category, 0)
                        truth[category] -= ns
                        truth["rolled_back"] += ns
        return {category: ns for category, ns in truth.items() if ns}

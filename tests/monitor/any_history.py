"""Tells any history of a run, with the truth of where its time went found by brute force.

Unlike ``histories`` it knows spikes: a roll-back to a save, and skips of sequences from there on. Every sequence is followed one
by one through the skip records, where the ledger calculates with gaps.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from headway.base.digests import digest_json
from headway.rundir.segments import Segment, current_chain

SEQUENCES = 8  # of a step
STAGE = "main"  # as tiny_spec has it


@dataclass
class Teller:
    boot_ns: int = 10**9
    real_ns: int = 10**18
    boot: str = "a"
    events: list[dict] = field(default_factory=list)
    rows: dict[int, list[dict]] = field(default_factory=dict)
    segments: list[Segment] = field(default_factory=list)
    truth: Counter = field(default_factory=Counter)
    work: list[tuple[int, int, bool, str, int]] = field(default_factory=list)  # segment, step, applied, category, ns
    lost_ns: int = 0  # of rows that did not survive

    # --- time

    def passes(self, ns: int, category: str | None = None) -> None:
        self.boot_ns += ns
        self.real_ns += ns
        if category is not None:
            self.truth[category] += ns

    def stamp(self) -> dict:
        return {"boot_ns": self.boot_ns, "boot_id": self.boot, "real_ns": self.real_ns}

    # --- the owner

    def event(self, kind: str, **fields) -> None:
        self.events.append({"kind": kind, "stamp": self.stamp(), "n": len(self.events), **fields})

    def opens(self, closes: str, gap_ns: int, *, boot: str, skew_ns: int, queued_ns: int = 0) -> None:
        """After ``gap_ns``, by the clock of a host whose realtime differs by ``skew_ns``."""
        last = self.events[-1]
        self.boot_ns += gap_ns
        self.real_ns += gap_ns + skew_ns
        if boot != self.boot:
            self.boot, self.boot_ns = boot, 5
        same = last["stamp"]["boot_id"] == self.boot
        field_ = "boot_ns" if same else "real_ns"
        judged_ns = max(0, self.stamp()[field_] - last["stamp"][field_])
        previous = {"digest": digest_json(last), "gap_ns": judged_ns, "clock": ""}
        queued = {"queued_ns": queued_ns} if queued_ns else {}
        self.event("open", epoch=1, previous=previous, closes=closes, **queued)
        in_queue = min(queued_ns, judged_ns)
        self.truth["queue"] += in_queue
        self.truth[closes] += judged_ns - in_queue

    def launches(self, parent: int | None, restored: int, skips: tuple[dict, ...], ns: int) -> int:
        number = len(self.segments) + 1
        category = "reconfigure" if self.segments else "provision"
        self.passes(ns, category)
        self.segments.append(Segment(number, parent, restored, None, "", "automatic", 1, {}, skips=skips))
        self.event("launch", segment=number, pid=1, closes=category)
        self.rows[number] = []
        return number

    def closes(self, kind: str, category: str, ns: int) -> None:
        self.passes(ns, None)
        self.truth[category] += ns + self.lost_ns
        self.lost_ns = 0
        self.event(kind, segment=len(self.segments), closes=category)

    # --- the trainer

    def row(self, kind: str, pieces: dict[str, int], *, torn: bool = False, **fields) -> None:
        segment = len(self.segments)
        for ns in pieces.values():
            self.passes(ns)
        if torn:
            self.lost_ns += sum(pieces.values())
            return
        if self.lost_ns:
            self.truth["unknown"] += self.lost_ns
            self.lost_ns = 0
        split = {} if kind == "start" else {"split": {name: ns for name, ns in pieces.items() if ns}}
        self.rows[segment].append({"kind": kind, "stamp": self.stamp(), **split, **fields})
        for category, ns in pieces.items():
            if category in ("productive", "data_stall"):
                step = fields["step"] + (kind == "stall")
                self.work.append((segment, step, fields.get("applied", True), category, ns))
            else:
                self.truth[category] += ns

    def step(self, number: int, stall_ns: int, work_ns: int, *, applied: bool = True, torn: bool = False) -> None:
        fields = {"u": number * SEQUENCES, "sequences": SEQUENCES, "stage": STAGE, "applied": applied}
        fields |= {"tokens": number * 64, "targets": 64}
        self.row("step", {"data_stall": stall_ns, "productive": work_ns}, torn=torn, step=number, **fields)

    # --- the truth

    @property
    def chain(self) -> list[Segment]:
        return current_chain(self.segments)

    def expected(self) -> dict[str, int]:
        truth, chain = Counter(self.truth), self.chain
        until = {one.id: after.restored_step for one, after in pairwise(chain)} | {chain[-1].id: 10**9}
        gone = self._left_out(chain[-1].skips) if chain else set()
        recorded = {(segment, row["step"]) for segment, rows in self.rows.items() for row in rows if row["kind"] == "step"}
        for segment, step, applied, category, ns in self.work:
            if step <= until.get(segment, -1):
                truth[category if applied else "skipped"] += ns
                continue
            own = self.segments[segment - 1].skips
            indices = [stream_index(own, u) for u in range((step - 1) * SEQUENCES, step * SEQUENCES)]
            count = sum(n in gone for n in indices) if (segment, step) in recorded else 0
            truth["skipped"] += ns * count // SEQUENCES
            truth["rolled_back"] += ns - ns * count // SEQUENCES
        return {category: ns for category, ns in truth.items() if ns}

    def _left_out(self, skips: tuple[dict, ...]) -> set[int]:
        most = 2_000 + sum(skip["count"] for skip in skips)
        return set(range(most)) - {stream_index(skips, u) for u in range(most)}


def stream_index(skips: tuple[dict, ...], u: int) -> int:
    """CONTRACTS section 1, one index at a time."""
    n = u
    for skip in sorted(skips, key=lambda one: one["first"]):
        if n >= skip["first"]:
            n += skip["count"]
    return n

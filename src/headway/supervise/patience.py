r"""How long no progress is no hang: learned per phase from what this run has shown, within hard limits.

    attempt  init . restore . compile | data step record evaluation save | data step ...
             \_ first time: the hard limit of the phase __/ \_ seen before: max(floor, factor x the longest seen) _/

Progress is a new whole row of the trainer, or a rank whose heartbeat moved on (``rundir/heartbeats.py``), both received by the
supervisor's own clock. The heartbeats say in which phases the ranks are: the most patient of them counts, since the others
wait for it. A phase that this run has never ended has its hard limit alone: a first save or evaluation may take far longer
than any step (F2); so has the end, in which writers finish. A ``stall`` row is no progress, but it names a cause that may pass:
from it on the hard limit counts, from the last progress (D12).

Trainers without heartbeats: nothing announces a save or an evaluation, so until both were seen the generous limit stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headway.rundir.heartbeats import COMPILE, DATA, EVALUATION, INIT, RECORD, RESTORE, SAVE, STEP
from headway.supervise.options import SuperviseOptions

_TELLING = {"step", "save", "evaluation"}
_GRACE_FACTOR = 2.0
_START_FACTOR = 4.0
"""More patience with a start: files that were read before may have left the machine's memory."""
_STARTS = (INIT, RESTORE, COMPILE)
_ROWS: dict[str, frozenset[str]] = {
    STEP: frozenset({"step"}),
    DATA: frozenset({"step"}),
    RECORD: frozenset({"step", "delivery"}),
    EVALUATION: frozenset({"evaluation", "sample"}),
    SAVE: frozenset({"snapshot", "save", "save_skipped", "waiting"}),
}
"""Rows by the phase that they close."""
_PROOF = {STEP: "step", DATA: "step", RECORD: "step", EVALUATION: "evaluation", SAVE: "save"}
"""The row without which a phase has never ended in this run."""


class Patience:
    """Judges one attempt after another; what it has learned about the run's rows stays.

    ``hard_seconds``: by phase, where it is not ``generous_seconds``.
    """

    def __init__(
        self,
        *,
        floor_seconds: float,
        factor: float,
        generous_seconds: float,
        hard_seconds: Mapping[str, float] | None = None,
    ):
        self._floor_seconds, self._factor, self._generous_seconds = floor_seconds, factor, generous_seconds
        self._hard_seconds = dict(hard_seconds or {})
        self._longest_ns: dict[str, int] = {}  # by kind of row
        self._longest_start_ns: dict[str, int] = {}  # by phase of the start
        self._longest_flush_ns = 0
        self._phases: frozenset[str] = frozenset()  # of the ranks now; empty: no heartbeats
        self._stepped, self._stalled = False, False
        self.last_progress_ns = 0
        self.last_row_ns = 0  # a stall counts here

    @staticmethod
    def of(options: SuperviseOptions) -> Patience:
        return Patience(
            floor_seconds=options.hang_floor_seconds,
            factor=options.hang_factor,
            generous_seconds=options.startup_seconds,
            hard_seconds=options.hard_seconds,
        )

    def learn(self, rows: Iterable[dict]) -> None:
        """Rows of earlier attempts."""
        for row in rows:
            kind, ns = row["kind"], sum(row.get("split", {}).values())
            self._longest_flush_ns = max(self._longest_flush_ns, row.get("flush_ns") or 0)
            if kind == "restored":
                self._learn_start(row.get("phases_ns") or {})
            if kind not in ("start", "restored", "stall"):
                self._longest_ns[kind] = max(self._longest_ns.get(kind, 0), ns)

    def _learn_start(self, phases_ns: Mapping[str, int]) -> None:
        restore_ns = phases_ns.get("restore", 0)
        self.started(RESTORE, restore_ns)
        self.started(INIT, sum(phases_ns.values()) - restore_ns)

    def started(self, phase: str, ns: int) -> None:
        """A phase of a start took so long on some rank."""
        if ns > 0:
            self._longest_start_ns[phase] = max(self._longest_start_ns.get(phase, 0), ns)

    def begin(self, now_ns: int) -> None:
        """A trainer was launched."""
        self._stepped, self._stalled, self._phases = False, False, frozenset()
        self.last_progress_ns = self.last_row_ns = now_ns

    def progress(self, row: dict, now_ns: int) -> None:
        self.learn([row])
        self._stepped = self._stepped or row["kind"] == "step"
        self._stalled = row["kind"] == "stall"
        self.last_row_ns = now_ns
        if not self._stalled:
            self.last_progress_ns = now_ns

    def moved(self, phases: Iterable[str], now_ns: int) -> None:
        """Some rank's heartbeat went on; ``phases``: those in which the ranks are now."""
        self._phases, self._stalled = frozenset(phases), False
        self.last_progress_ns = now_ns

    @property
    def limit_seconds(self) -> float:
        if self._phases:
            return max(self.phase_seconds(phase) for phase in self._phases)
        learned = self._learned(max(self._longest_ns.values(), default=0))
        if self._stepped and not self._stalled and self._longest_ns.keys() >= _TELLING:
            return learned
        return max(self._generous_seconds, learned)

    def phase_seconds(self, phase: str) -> float:
        """How long nothing may move while a rank is in ``phase``."""
        hard = self._hard_seconds.get(phase, self._generous_seconds)
        if phase in _STARTS:
            longest_ns = self._longest_start_ns.get(phase)
            return hard if longest_ns is None else min(hard, _START_FACTOR * self._learned(longest_ns))
        if self._stalled or _PROOF.get(phase) not in self._longest_ns:
            return hard
        longest_ns = max(self._longest_ns.get(kind, 0) for kind in _ROWS[phase])
        return min(max(hard, _GRACE_FACTOR * longest_ns / 1e9), self._learned(longest_ns))

    def _learned(self, longest_ns: int) -> float:
        return max(self._floor_seconds, self._factor * longest_ns / 1e9)

    def grace_seconds(self, floor_seconds: float) -> float:
        """Time for a healthy trainer to end by itself: it finishes its step, then saves. Twice the longest of both (F5)."""
        save_ns = self._longest_ns.get("snapshot", 0) + max(self._longest_ns.get("save", 0), self._longest_flush_ns)
        return max(floor_seconds, _GRACE_FACTOR * (self._longest_ns.get("step", 0) + save_ns) / 1e9)

    def writers_seconds(self, floor_seconds: float) -> float:
        """Time for writers to finish a snapshot that was sealed before its trainer died."""
        return max(floor_seconds, _GRACE_FACTOR * self._longest_flush_ns / 1e9)

    def is_over(self, now_ns: int) -> bool:
        return now_ns - self.last_progress_ns > self.limit_seconds * 1e9

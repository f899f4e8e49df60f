r"""How long no progress is no hang: learned from what this run has shown, never shorter than a floor.

    attempt  start ....... restored .... step | step step save step evaluation step ............ silence
             \_____ generous: imports, ____/   \__ limit = max(floor, factor x the longest row seen) __/
                    compilation, restoring

Progress is a new whole row of the trainer, received by the supervisor's own clock. A first save (its copy, and at the end its
commit) or evaluation may take far longer than any step, and nothing announces it: until both were seen in this run the generous
limit stays (F2). A ``stall`` row is no progress, but it names a cause that may pass: from it on the generous limit counts, from
the last progress (D12).
"""

from __future__ import annotations

from collections.abc import Iterable

_TELLING = {"step", "save", "evaluation"}
_GRACE_FACTOR = 2.0


class Patience:
    """Judges one attempt after another; what it has learned about the run's rows stays."""

    def __init__(self, *, floor_seconds: float, factor: float, generous_seconds: float):
        self._floor_seconds, self._factor, self._generous_seconds = floor_seconds, factor, generous_seconds
        self._longest_ns: dict[str, int] = {}  # by kind of row
        self._longest_flush_ns = 0
        self._stepped, self._stalled = False, False
        self.last_progress_ns = 0
        self.last_row_ns = 0  # a stall counts here

    def learn(self, rows: Iterable[dict]) -> None:
        """Rows of earlier attempts."""
        for row in rows:
            kind, ns = row["kind"], sum(row.get("split", {}).values())
            self._longest_flush_ns = max(self._longest_flush_ns, row.get("flush_ns") or 0)
            if kind not in ("start", "restored", "stall"):
                self._longest_ns[kind] = max(self._longest_ns.get(kind, 0), ns)

    def begin(self, now_ns: int) -> None:
        """A trainer was launched."""
        self._stepped, self._stalled = False, False
        self.last_progress_ns = self.last_row_ns = now_ns

    def progress(self, row: dict, now_ns: int) -> None:
        self.learn([row])
        self._stepped = self._stepped or row["kind"] == "step"
        self._stalled = row["kind"] == "stall"
        self.last_row_ns = now_ns
        if not self._stalled:
            self.last_progress_ns = now_ns

    @property
    def limit_seconds(self) -> float:
        learned = max(self._floor_seconds, self._factor * max(self._longest_ns.values(), default=0) / 1e9)
        if self._stepped and not self._stalled and self._longest_ns.keys() >= _TELLING:
            return learned
        return max(self._generous_seconds, learned)

    def grace_seconds(self, floor_seconds: float) -> float:
        """Time for a healthy trainer to end by itself: it finishes its step, then saves. Twice the longest of both (F5)."""
        save_ns = self._longest_ns.get("snapshot", 0) + max(self._longest_ns.get("save", 0), self._longest_flush_ns)
        return max(floor_seconds, _GRACE_FACTOR * (self._longest_ns.get("step", 0) + save_ns) / 1e9)

    def writers_seconds(self, floor_seconds: float) -> float:
        """Time for writers to finish a snapshot that was sealed before its trainer died."""
        return max(floor_seconds, _GRACE_FACTOR * self._longest_flush_ns / 1e9)

    def is_over(self, now_ns: int) -> bool:
        return now_ns - self.last_progress_ns > self.limit_seconds * 1e9

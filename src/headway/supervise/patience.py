r"""How long no progress is no hang: learned from what this run has shown, never shorter than a floor.

    attempt  start ....... restored .... step | step step save step evaluation step ............ silence
             \_____ generous: imports, ____/   \__ limit = max(floor, factor x the longest row seen) __/
                    compilation, restoring

Progress is a new whole row of the trainer, received by the supervisor's own clock. A first save or evaluation may take far
longer than any step, and nothing announces it: until both were seen in this run the generous limit stays (F2).
"""

from __future__ import annotations

from collections.abc import Iterable

_TELLING = ("step", "save", "evaluation")


class Patience:
    """Judges one attempt after another; what it has learned about the run's rows stays."""

    def __init__(self, *, floor_seconds: float, factor: float, generous_seconds: float):
        self._floor_seconds, self._factor, self._generous_seconds = floor_seconds, factor, generous_seconds
        self._seen: set[str] = set()
        self._longest_ns = 0
        self._stepped = False
        self.last_progress_ns = 0

    def learn(self, rows: Iterable[dict]) -> None:
        """Rows of earlier attempts."""
        for row in rows:
            if row["kind"] not in ("start", "restored"):
                self._seen.add(row["kind"])
                self._longest_ns = max(self._longest_ns, sum(row.get("split", {}).values()))

    def begin(self, now_ns: int) -> None:
        """A trainer was launched."""
        self._stepped, self.last_progress_ns = False, now_ns

    def progress(self, row: dict, now_ns: int) -> None:
        self.learn([row])
        self._stepped = self._stepped or row["kind"] == "step"
        self.last_progress_ns = now_ns

    @property
    def limit_seconds(self) -> float:
        learned = max(self._floor_seconds, self._factor * self._longest_ns / 1e9)
        if self._stepped and self._seen.issuperset(_TELLING):
            return learned
        return max(self._generous_seconds, learned)

    def is_over(self, now_ns: int) -> bool:
        return now_ns - self.last_progress_ns > self.limit_seconds * 1e9

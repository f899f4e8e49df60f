"""Copying committed checkpoints to the second place while the run goes on: one at a time, always the newest that is due.

    committed   s40   s80   s120  s160
    copied      s40 ----------->  s160        s80 and s120 were overtaken: what was asked for last counts

What retention deleted here goes there too, after the copy; what merely vanished here stays there: that is what it is for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from headway.base.clocks import Clock
from headway.base.errors import HeadwayError
from headway.rundir.layout import RunDirectory
from headway.store.admissible import recorded_deletions
from headway.store.mirror.mirror import Mirror


class Mirroring:
    """A thread that copies. ``tell(job, kind, **fields)`` is called from it: ``mirrored`` or ``mirror_failed``."""

    def __init__(self, run: RunDirectory, clock: Clock, tell: Callable[..., None]):
        self._run, self._clock, self._tell = run, clock, tell
        self._due: tuple[Any, str] | None = None
        self._copying: str | None = None
        self._changed = threading.Condition()
        self._started = False

    @property
    def busy(self) -> bool:
        return bool(self.needed)

    @property
    def needed(self) -> set[str]:
        """Checkpoints that are being copied, or will be: their directories must not be deleted meanwhile."""
        with self._changed:
            due = {str(self._due[0].name)} if self._due is not None else set()
            return due | ({self._copying} if self._copying is not None else set())

    def ask(self, job: Any, url: str) -> None:
        """Copy the checkpoint of ``job`` (its ``name``) as soon as the one under way is done."""
        with self._changed:
            self._due = (job, url)
            if not self._started:
                self._started = True
                threading.Thread(target=self._work, daemon=True, name="mirror").start()
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._due is not None)
                assert self._due is not None
                (job, url), self._due = self._due, None
                self._copying = str(job.name)
            began_ns = self._clock.stamp().boot_ns
            try:
                sent_bytes = self._copy(str(job.name), url)
                told: dict[str, Any] = {"sent_bytes": sent_bytes, "mirror_ns": self._clock.stamp().boot_ns - began_ns}
                self._tell(job, "mirrored", **told)
            except HeadwayError as error:
                self._tell(job, "mirror_failed", error=str(error))
            except Exception as error:  # a fault of a storage's own client: training and later copies go on
                self._tell(job, "mirror_failed", error=f"{type(error).__name__}: {error}")
            finally:
                with self._changed:
                    self._copying = None

    def _copy(self, name: str, url: str) -> int:
        mirror = Mirror.open(url, self._run.info()["run_id"], self._clock)
        copied = mirror.put(self._run.checkpoints / name)
        gone = recorded_deletions(self._run)
        there = set(mirror.list())
        if there & gone:
            mirror.prune(there - gone)
        return copied.sent_bytes

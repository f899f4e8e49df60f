"""Brings the shards that come next into the cache while training goes on: one thread, the newest wish counts.

It never makes anybody wait: what does not fit beside what is read stays where it is, and a fault is left for the reader to
meet, who wants the shard in earnest and says so.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from headway.base.errors import HeadwayError
from headway.data.cache import Traffic
from headway.data.manifest import ShardEntry
from headway.data.place import RemoteShards

_JOIN_SECONDS = 5.0


@dataclass(frozen=True, eq=False)
class Wish:
    """A shard of ``size`` bytes, on the account of its source."""

    entry: ShardEntry
    size: int
    traffic: Traffic


class Ahead:
    def __init__(self, shards: RemoteShards):
        self._shards = shards
        self._wishes: list[Wish] = []
        self._files: tuple[str, ...] = ()
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def want(self, wishes: list[Wish]) -> None:
        """In this order, in place of what was wanted before. The same list as before changes nothing."""
        files = tuple(wish.entry.file for wish in wishes)
        if files == self._files:
            return
        with self._changed:
            self._files, self._wishes = files, wishes[::-1]
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="headway-ahead", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while (wish := self._next()) is not None:
            try:
                self._shards.cache.fetch_ahead(self._shards.remote, wish.entry, wish.size, wish.traffic)
            except HeadwayError:
                continue

    def _next(self) -> Wish | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._wishes))
            return None if self._closed else self._wishes.pop()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._shards.cache.close()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

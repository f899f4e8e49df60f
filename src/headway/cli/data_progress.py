"""What a data build tells, for people: a bar on a terminal, elsewhere a line now and then, throughput in both.

    - code: 660 documents
    - tokenizer: 4,096 entries, digest 278df5d0d1c2
    - tokens: [##########..............] 45% of 9.79 MiB, 2.05 MiB/s, 581k tokens/s, 3 s left

Throughput is of what this build made: what it took over from one that was killed is told apart.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headway.base.clocks import Clock, SystemClock
from headway.base.units import format_bytes, format_count, format_seconds
from headway.cli.output import rewrite, say

LINE_SECONDS, BAR_SECONDS = 30.0, 0.2
BAR_WIDTH = 24


class BuildProgress:
    """Folds what is told into lines. ``show`` gets each with whether it stays, or is the line of this moment only."""

    def __init__(self, show: Callable[[str, bool], None], clock: Clock, every_seconds: float):
        self._show, self._clock, self._every = show, clock, every_seconds
        self._started = self._shown = self._now()
        self._sources: dict[str, dict[str, Any]] = {}
        self._prepared: set[str] = set()
        self._total_bytes = 0

    def tell(self, what: str, facts: dict[str, Any]) -> None:
        if what == "documents":
            self._total_bytes += facts["bytes"]
        if what in ("prepared", "documents", "tokenizer"):
            self._started = self._shown = self._now()
        if what == "tokens":
            self._sources[facts["source"]] = facts
        if what == "preparing":
            self._prepared.add(facts["source"])
        if what == "reading" and facts["source"] in self._prepared:
            return  # what is read was prepared on its way here, which tells more
        if what in ("preparing", "reading", "tokens") and self._now() - self._shown >= self._every:
            self._shown = self._now()
            self._show(self._tokens() if what == "tokens" else self._reading(facts), False)
        if what == "written" and self._sources:
            self._show(self._tokens(), True)
            kept = sum(facts["kept_bytes"] for facts in self._sources.values())
            if kept:
                self._show(f"- taken over from a build that did not end: tokens of {format_bytes(kept)}", True)

    def _now(self) -> float:
        return self._clock.stamp().boot_ns / 1e9

    def _seconds(self) -> float:
        return max(1e-3, self._now() - self._started)

    def _reading(self, facts: dict[str, Any]) -> str:
        rate = format_bytes(facts["bytes"] / self._seconds())
        kept = f"; {facts['kept']:,} kept" if "kept" in facts else ""
        return f"- {facts['source']}: {facts['documents']:,} documents so far, {format_bytes(facts['bytes'])}, {rate}/s{kept}"

    def _tokens(self) -> str:
        done, kept, tokens, kept_tokens = (
            sum(facts[name] for facts in self._sources.values()) for name in ("bytes", "kept_bytes", "tokens", "kept_tokens")
        )
        rate = (done - kept) / self._seconds()
        speed = f"{format_bytes(rate)}/s, {format_count((tokens - kept_tokens) / self._seconds())} tokens/s"
        if done == self._total_bytes:
            return f"- tokens: {tokens:,} of {format_bytes(done)}, {speed}"
        left = f", {format_seconds((self._total_bytes - done) / rate)} left" if rate else ""
        share = done / self._total_bytes
        bar = "#" * int(share * BAR_WIDTH)
        return f"- tokens: [{bar:.<{BAR_WIDTH}}] {share:.0%} of {format_bytes(self._total_bytes)}, {speed}{left}"


@contextmanager
def token_meter(name: str, shown: bool) -> Iterator[Callable[[int], None] | None]:
    """Is told tokens as they are read, and shows their sum on standard error until the end; not ``shown``: None."""
    done = 0

    def tell(tokens: int) -> None:
        nonlocal done
        done += tokens
        rewrite(f"{name}  {done:,} tokens", sys.stderr)

    try:
        yield tell if shown else None
    finally:
        if shown:
            rewrite(stream=sys.stderr)


def on_screen(live: bool) -> Callable[[str, bool], None]:
    """Shows lines on stdout. ``live``: the line of this moment stands below the others and is written anew."""

    def show(line: str, stays: bool) -> None:
        if live:
            rewrite("" if stays else line)
        if stays or not live:
            say(line)

    return show


def progress_of(live: bool) -> Callable[[str, dict[str, Any]], None]:
    """What a build is given to tell: the lines of its stages, and how fast it goes."""
    from headway.cli.data import stage_line

    show = on_screen(live)
    progress = BuildProgress(show, SystemClock(), BAR_SECONDS if live else LINE_SECONDS)

    def tell(what: str, facts: dict[str, Any]) -> None:
        if line := stage_line(what, facts):
            show(line, True)
        progress.tell(what, facts)

    return tell

"""What the preparation did to a source: documents and bytes before and after each step, what was left out by reason, examples.

    before of a step = after of the step before it;   documents after = before - left out - joined to others

A changed document passes the steps again, so a step's numbers are sums of differences: they add up whatever the passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.data.manifest import PreparationStep
from headway.data.prepare.steps import Verdict

EXAMPLES = 5
"""Documents named in the report, per step and reason: the first ones."""


@dataclass
class StepRecord:
    """One step on one source. Bytes are of UTF-8; ``changed_bytes`` is what changes added, less than 0 where they removed."""

    step: str
    version: int
    dropped: Counter[str] = field(default_factory=Counter)
    dropped_bytes: int = 0
    changed: int = 0
    changed_bytes: int = 0
    joined: int = 0
    found: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    def drop(self, verdict: Verdict, origin: str, size: int) -> None:
        self.dropped[verdict.dropped] += 1
        self.dropped_bytes += size
        named = self.examples.setdefault(verdict.dropped, [])
        if len(named) < EXAMPLES:
            named.append({"document": origin, "detail": verdict.detail})

    def change(self, verdict: Verdict, before: int, after: int) -> None:
        self.changed += 1
        self.changed_bytes += after - before
        self.found.update(verdict.found)


class SourceRecord:
    """All steps on one source, in their order. ``documents`` and ``bytes`` are what was read of it."""

    def __init__(self, steps: Sequence[tuple[str, int]]):
        self.documents = self.bytes = 0
        self.steps = [StepRecord(name, version) for name, version in steps]

    def read(self, size: int) -> None:
        self.documents += 1
        self.bytes += size

    def inventory(self) -> tuple[PreparationStep, ...]:
        """For the manifest."""
        rows, documents, size = [], self.documents, self.bytes
        for record in self.steps:
            documents_after = documents - record.dropped.total() - record.joined
            bytes_after = size - record.dropped_bytes + record.changed_bytes
            rows.append(
                PreparationStep(
                    step=record.step,
                    version=record.version,
                    documents_before=documents,
                    bytes_before=size,
                    documents_after=documents_after,
                    bytes_after=bytes_after,
                    dropped=dict(sorted(record.dropped.items())),
                    changed=record.changed,
                    joined=record.joined,
                    found=dict(sorted(record.found.items())),
                )
            )
            documents, size = documents_after, bytes_after
        return tuple(rows)

    def examples(self) -> dict[str, dict[str, list[dict[str, str]]]]:
        """Step -> reason -> documents with what was measured; no text of theirs."""
        return {record.step: dict(sorted(record.examples.items())) for record in self.steps if record.examples}

    def summary(self) -> dict[str, Any]:
        """For the screen: what came in, what goes on, and why the rest does not."""
        last = self.inventory()[-1]
        dropped: Counter[str] = Counter()
        for record in self.steps:
            dropped.update(record.dropped)
        return {
            "documents_read": self.documents,
            "bytes_read": self.bytes,
            "documents": last.documents_after,
            "bytes": last.bytes_after,
            "dropped": dict(sorted(dropped.items())),
            "changed": {record.step: record.changed for record in self.steps if record.changed},
            "joined": self.steps[-1].joined,
        }

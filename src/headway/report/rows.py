"""The trainer's rows as tables: steps as columns of numpy arrays, the rarer kinds as small objects.

Order is the order of execution. ``kept`` says whether a row is part of the run's history (see ``attempts``).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headway.report.attempts import SegmentFacts
from headway.rundir.layout import RunDirectory

Rows = Sequence[tuple[SegmentFacts, dict]]


@dataclass(frozen=True)
class Steps:
    """One entry per executed update. Losses are nats per target token, rates are per step, times nanoseconds; absent is NaN."""

    segment: np.ndarray
    step: np.ndarray
    stage: np.ndarray  # of str: its name
    sequences: np.ndarray
    tokens: np.ndarray  # trained so far, by the history that this row continues
    targets: np.ndarray
    loss: np.ndarray
    z_loss: np.ndarray
    grad_norm: np.ndarray
    rate: np.ndarray
    clipped: np.ndarray
    applied: np.ndarray  # False: the gradient was not finite, or far above the recent ones, and the update was left out
    largest_load: np.ndarray  # of an expert, over the mean; NaN without experts
    idle_experts: np.ndarray  # share of a layer's experts
    further_loss: np.ndarray  # of the heads for further tokens, weighted; NaN without
    stall_ns: np.ndarray
    total_ns: np.ndarray  # of the row's whole split
    boot_ns: np.ndarray
    kept: np.ndarray
    digest: np.ndarray  # of str or None

    def __len__(self) -> int:
        return len(self.step)

    def where(self, mask: np.ndarray) -> Steps:
        return Steps(**{field.name: getattr(self, field.name)[mask] for field in dataclasses.fields(self)})

    def at(self, step: int) -> Steps:
        """Every execution of ``step``."""
        return self.where(self.step == step)


@dataclass(frozen=True)
class Buckets:
    """Held-out loss by position: bucket 0 is position 0, bucket b positions 2^(b-1) to 2^b - 1. NaN where none was scored."""

    targets: np.ndarray
    loss: np.ndarray  # nats per token

    @staticmethod
    def of(plain: Any) -> Buckets | None:
        """None: it is no record of buckets."""
        parts = [part for part in map(plain.get, ("targets", "nll")) if isinstance(part, list)] if isinstance(plain, dict) else []
        if len(parts) != 2 or not parts[0] or len(parts[0]) != len(parts[1]):
            return None
        targets, nll = (np.array([number(value) for value in part]) for part in parts)
        return Buckets(targets, np.divide(nll, targets, out=np.full(len(nll), math.nan), where=targets > 0))


@dataclass(frozen=True)
class Evaluation:
    """Held-out loss per source (nats per token) after ``step``. Older runs say nothing of bytes and positions."""

    segment: int
    step: int
    tokens: int
    loss: dict[str, float]
    targets: dict[str, int]
    ns: int  # that it took
    kept: bool
    bits_per_byte: dict[str, float] = field(default_factory=dict)
    by_position: dict[str, dict[str, Buckets]] = field(default_factory=dict)  # source -> window, document


@dataclass(frozen=True)
class Save:
    """A committed checkpoint. ``present``: its directory is still there (retention deletes old ones)."""

    segment: int
    step: int
    checkpoint: str
    size_bytes: int
    blocking_ns: int  # that training stood still: for the copy (in older runs until the commit and the read-back after it)
    digest: str | None  # of the state
    kept: bool
    present: bool


@dataclass(frozen=True)
class Sample:
    """Fixed prompts continued by the state after ``step``."""

    segment: int
    step: int
    texts: tuple[dict, ...]
    ns: int  # that it took
    kept: bool


def number(value: Any) -> float:
    """A float, NaN for what is absent or no number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def whole(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else 0


def split_sum(split: Any) -> int:
    return sum(whole(value) for value in split.values()) if isinstance(split, dict) else 0


def gather_steps(rows: Rows) -> Steps:
    owned = [(facts, record) for facts, record in rows if record.get("kind") == "step"]
    records = [record for _, record in owned]

    def column(take: Callable[[dict], Any], dtype: Any) -> np.ndarray:
        return np.array([take(record) for record in records], dtype=dtype)

    def count(name: str) -> np.ndarray:
        return column(lambda record: whole(record.get(name)), np.int64)

    def real(name: str) -> np.ndarray:
        return column(lambda record: number(record.get(name)), np.float64)

    return Steps(
        **{name: count(name) for name in ("step", "sequences", "tokens", "targets")},
        **{name: real(name) for name in ("loss", "z_loss", "grad_norm", "rate")},
        **{name: real(name) for name in ("largest_load", "idle_experts", "further_loss")},
        segment=np.array([facts.segment.id for facts, _ in owned], dtype=np.int64),
        kept=np.array([facts.keeps(whole(record.get("step"))) for facts, record in owned], dtype=bool),
        stage=column(lambda record: record.get("stage"), object),
        clipped=column(lambda record: bool(record.get("clipped")), bool),
        applied=column(lambda record: record.get("applied", True) is not False, bool),
        stall_ns=column(lambda record: whole((record.get("split") or {}).get("data_stall")), np.int64),
        total_ns=column(lambda record: split_sum(record.get("split")), np.int64),
        boot_ns=column(lambda record: whole((record.get("stamp") or {}).get("boot_ns")), np.int64),
        digest=column(lambda record: record.get("digest"), object),
    )


def _of_kind(rows: Rows, kind: str) -> list[tuple[SegmentFacts, dict, int]]:
    return [(facts, record, whole(record.get("step"))) for facts, record in rows if record.get("kind") == kind]


def gather_evaluations(rows: Rows) -> tuple[Evaluation, ...]:
    return tuple(
        Evaluation(
            segment=facts.segment.id,
            step=step,
            tokens=whole(record.get("tokens")),
            loss={str(name): number(value) for name, value in (record.get("loss") or {}).items()},
            targets={str(name): whole(value) for name, value in (record.get("targets") or {}).items()},
            ns=split_sum(record.get("split")),
            kept=facts.keeps(step),
            bits_per_byte={str(name): number(value) for name, value in (record.get("bits_per_byte") or {}).items()},
            by_position={str(name): _buckets(plain) for name, plain in (record.get("by_position") or {}).items()},
        )
        for facts, record, step in _of_kind(rows, "evaluation")
    )


def _buckets(plain: Any) -> dict[str, Buckets]:
    found = {name: Buckets.of(plain.get(name)) for name in ("window", "document")} if isinstance(plain, dict) else {}
    return {name: buckets for name, buckets in found.items() if buckets is not None}


def gather_saves(rows: Rows, run: RunDirectory) -> tuple[Save, ...]:
    return tuple(
        Save(
            segment=facts.segment.id,
            step=step,
            checkpoint=str(record.get("checkpoint")),
            size_bytes=whole(record.get("bytes")),
            blocking_ns=whole(record.get("blocking_ns")) + whole(record.get("retention_ns")),
            digest=str(record["digest"]) if record.get("digest") else None,
            kept=facts.keeps(step),
            present=(run.checkpoints / str(record.get("checkpoint"))).is_dir(),
        )
        for facts, record, step in _of_kind(rows, "save")
    )


def gather_samples(rows: Rows) -> tuple[Sample, ...]:
    return tuple(
        Sample(
            segment=facts.segment.id,
            step=step,
            texts=tuple(text for text in record.get("texts") or () if isinstance(text, dict)),
            ns=split_sum(record.get("split")),
            kept=facts.keeps(step),
        )
        for facts, record, step in _of_kind(rows, "sample")
    )

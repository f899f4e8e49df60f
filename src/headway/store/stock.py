"""What lies under checkpoints/, with all that decides whether it stays.

    g0001-s00000040   history      3rd save of this history, kept as "before the spike"
    g0001-s00000060   history      refused: flipped bit
    g0001-s00000070   no history   late, or rolled back
    g0002-s00000080   unfinished

Names, manifests and records are read, never the data. No clocks, no modification times.
"""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass
from pathlib import Path

from headway.base.errors import HeadwayError, from_os_error
from headway.base.records import read_records
from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import read_chain_rows
from headway.rundir.segments import Segment, is_admissible
from headway.store.admissible import CheckpointInfo, list_checkpoints, recorded_names, refusals
from headway.store.kept import kept_labels
from headway.store.manifest import load_manifest
from headway.store.names import DELETED, TOMBSTONE, parse_name

NEVER_COMMITTED = "never committed"
"""How the reason of a deletion begins that took no save of the history away (a line in deleted.jsonl)."""


@dataclass(frozen=True, kw_only=True)
class Holding:
    """One directory under checkpoints/, which is no link."""

    info: CheckpointInfo
    nbytes: int  # of its files
    halfway: bool = False  # its deletion was begun
    refusal: str = ""  # why it was refused once; empty: it never was
    damage: str = ""  # why its manifest cannot be read; empty: it can, or was not looked at
    ordinal: int | None = None  # the how many-th committed save of the history it is, from 1; None: of no history, or unknown
    checked: int = 0  # the last step of its history that was repeated and found sound when it was saved
    label: str | None = None  # a person keeps it, under this label; None: nobody does

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def in_history(self) -> bool:
        """A run could go on from it, as far as its name and its records tell."""
        return self.info.committed and self.info.admissible and not self.halfway

    @property
    def is_evidence(self) -> bool:
        """Refused, or not to be read: never a generation, and nothing deletes it."""
        return bool(self.refusal or self.damage)


def take_stock(run: RunDirectory, chain: list[Segment]) -> list[Holding]:
    """Every directory that is no link, by segment and step."""
    refused = {entry["checkpoint"]: str(entry.get("reason") or "refused") for entry in refusals(run)}
    labels = kept_labels(run)
    infos = [info for info in list_checkpoints(run, chain) if not info.is_link]
    stated = {info.name: _stated(run.checkpoints / info.name) for info in infos if info.committed and info.admissible}
    silent = any(said.ordinal is None and not said.damage for said in stated.values())
    ranks = _ranks(run, chain, infos) if silent else {}  # reads all records of the run: only where an older version saved
    holdings = []
    for info in infos:
        directory, said = run.checkpoints / info.name, stated.get(info.name, _Stated())
        holdings.append(
            Holding(
                info=info,
                nbytes=directory_bytes(directory),
                halfway=(directory / TOMBSTONE).exists(),
                refusal=refused.get(info.name, ""),
                damage=said.damage,
                ordinal=None if said.damage else said.ordinal or ranks.get(info.name),
                checked=said.checked,
                label=labels.get(info.name),
            )
        )
    return holdings


def held_out_losses(run: RunDirectory, chain: list[Segment]) -> dict[int, float]:
    """By step: the held-out loss on record in this history, the mean over the sources; none where it is not finite."""
    rows = (row for row in read_chain_rows(run, chain).kept if row["kind"] == "evaluation" and row["loss"])
    return {row["step"]: math.fsum(row["loss"].values()) / len(row["loss"]) for row in rows if _are_finite(row["loss"])}


def directory_bytes(directory: Path) -> int:
    """Of the files directly inside it; what goes while it is looked at counts nothing."""
    total = 0
    try:
        for name in os.listdir(directory):
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(directory / name).st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise from_os_error(error, directory, "cannot list checkpoint") from error
    return total


def _are_finite(losses: dict[str, float]) -> bool:
    return all(map(math.isfinite, losses.values()))


@dataclass(frozen=True, kw_only=True)
class _Stated:
    """What a manifest says. ``ordinal`` None: nothing, as those of older versions."""

    ordinal: int | None = None
    checked: int = 0
    damage: str = ""


def _stated(directory: Path) -> _Stated:
    try:
        state = load_manifest(directory).state
    except HeadwayError as error:
        return _Stated(damage=error.problems[0].seen)
    ordinal, checks = state.get("ordinal"), state.get("checked")
    checked = checks.get("repeat", 0) if isinstance(checks, dict) else 0
    return _Stated(ordinal=ordinal if type(ordinal) is int and ordinal > 0 else None, checked=checked)


def _ranks(run: RunDirectory, chain: list[Segment], infos: list[CheckpointInfo]) -> dict[str, int]:
    """The place of each checkpoint among all that were ever committed in this history: deletions move nobody."""
    deleted = (record for record in read_records(run.checkpoints / DELETED).records if _was_committed(record.get("reason")))
    ever = {info.name for info in infos if info.committed} | recorded_names(run, chain)
    ever |= {str(record.get("checkpoint")) for record in deleted}
    parsed = (parse_name(text) for text in ever)
    names = sorted(name for name in parsed if name is not None and is_admissible(chain, name.segment, name.step))
    return {str(name): rank for rank, name in enumerate(names, start=1)}


def _was_committed(reason: object) -> bool:
    return isinstance(reason, str) and not reason.startswith(NEVER_COMMITTED)

"""Checkpoints that a person keeps: no policy deletes them until they are released.

    kept.jsonl   {kind: "kept", checkpoint, label, author, stamp}   {kind: "released", checkpoint, author, stamp}
    the last word per name counts

A person may keep a checkpoint while a trainer deletes. The mark is written first and the manifest looked at after it; who
deletes takes the manifest away first and looks for the mark after it (``deletion``): one of the two sees the other.
"""

from __future__ import annotations

from typing import Any

from headway.base.errors import ConfigError, RunError
from headway.base.files import make_directory
from headway.base.records import append_stamped, read_records
from headway.rundir.layout import RunDirectory
from headway.store.names import KEPT, MANIFEST, parse_name

LONGEST_LABEL = 60
"""Characters: a label stands in a column of a table."""


def kept_labels(run: RunDirectory) -> dict[str, str]:
    """The label of every checkpoint that is kept, by name; empty where none was given."""
    labels: dict[str, str] = {}
    for record in read_records(run.checkpoints / KEPT).records:
        name, label = record.get("checkpoint"), record.get("label")
        if not isinstance(name, str):
            continue
        if record.get("kind") == "kept":
            labels[name] = label if isinstance(label, str) else ""
        elif record.get("kind") == "released":
            labels.pop(name, None)
    return labels


def keep(run: RunDirectory, name: str, *, author: str, label: str = "") -> None:
    """Keep a committed checkpoint for good; a new label replaces the old one. RunError when it goes at this moment."""
    if len(label) > LONGEST_LABEL or not label.isprintable():
        raise ConfigError(
            f"the label {label!r}", f"a label is one line of at most {LONGEST_LABEL} characters", "choose a shorter one"
        )
    _require_committed(run, name)
    _append(run, {"kind": "kept", "checkpoint": name, "label": label, "author": author})
    if not (run.checkpoints / name / MANIFEST).exists():
        raise RunError(
            f"checkpoint {name} was being deleted at this moment",
            "what is deleted first loses its manifest; a deletion that sees the mark in time puts it back",
            "see what is left with: headway checkpoint list",
        )


def release(run: RunDirectory, name: str, *, author: str) -> None:
    """Leave a checkpoint to the policy again."""
    labels = kept_labels(run)
    if name not in labels:
        raise ConfigError(
            f"checkpoint {name!r} is not kept by name",
            "only what a person keeps can be released",
            f"kept by name: {', '.join(sorted(labels)) or 'none'}",
        )
    _append(run, {"kind": "released", "checkpoint": name, "author": author})


def _require_committed(run: RunDirectory, name: str) -> None:
    if parse_name(name) is not None and (run.checkpoints / name / MANIFEST).is_file():
        return
    committed = sorted(path.parent.name for path in run.checkpoints.glob(f"*/{MANIFEST}") if parse_name(path.parent.name))
    raise ConfigError(
        f"{name!r} is no committed checkpoint of this run",
        "a checkpoint is kept by the name of its directory, and has a manifest",
        f"committed: {', '.join(committed) or 'none'}",
    )


def _append(run: RunDirectory, record: dict[str, Any]) -> None:
    make_directory(run.checkpoints, "checkpoint directory")
    append_stamped(run.checkpoints / KEPT, record)

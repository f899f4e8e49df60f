"""How people name checkpoints: NAME in a run, RUN:NAME, or the path of a checkpoint directory, wherever it lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headway.base.errors import ConfigError

if TYPE_CHECKING:
    from headway.rundir.layout import RunDirectory

RULE = "a checkpoint is named by the path of its directory, or as RUN:NAME"


@dataclass(frozen=True)
class Place:
    """Where a checkpoint lies. ``run``: the run in which it was named; None: it was named by its path."""

    directory: Path
    run: RunDirectory | None = None

    @property
    def name(self) -> str:
        return self.directory.name


def is_run(path: str | Path) -> bool:
    return (Path(path) / "run.json").is_file()


def looks_like_checkpoint(path: Path) -> bool:
    """Also one that lost its manifest: to find that is what verifying is for."""
    from headway.store.names import MANIFEST, parse_name

    return path.is_dir() and ((path / MANIFEST).exists() or any(path.glob("receipt-*.json")) or parse_name(path.name) is not None)


def in_run(run: RunDirectory, name: str) -> Place:
    """The checkpoint ``name`` of ``run``; ConfigError that lists those that there are."""
    from headway.store.names import parse_name

    directory = run.checkpoints / name
    if parse_name(name) is not None and directory.is_dir():
        return Place(directory, run)
    names = sorted(path.name for path in run.checkpoints.glob("g*") if parse_name(path.name))
    raise ConfigError(
        f"{run.root} has no checkpoint {name!r}",
        "a checkpoint is named by its directory under checkpoints/",
        f"there are: {', '.join(names) or 'none'}",
    )


def place_of(reference: str) -> Place:
    """A path, or RUN:NAME; a path that exists is meant first."""
    from headway.rundir.layout import RunDirectory

    path = Path(reference)
    if is_run(path):
        raise ConfigError(f"{reference} is a run, not a checkpoint", RULE, f"name one, such as {reference}:NAME")
    if looks_like_checkpoint(path):
        return Place(path)
    root, colon, name = reference.rpartition(":")
    if colon and is_run(root):
        return in_run(RunDirectory.open(Path(root)), name)
    seen = "is no checkpoint directory: it has no MANIFEST.json" if path.is_dir() else "does not exist"
    raise ConfigError(f"{reference} {seen}", RULE, "list those of a run with: headway checkpoint list RUN")


def place_in(target: str, name: str | None) -> Place:
    """What RUN NAME says, or a path or RUN:NAME alone."""
    from headway.rundir.layout import RunDirectory

    if name is None:
        return place_of(target)
    return in_run(RunDirectory.open(Path(target)), name)

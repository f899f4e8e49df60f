"""Creating a run directory: whole or not at all.

It is built beside its place (``.NAME.PID.new``), made durable, and renamed: nobody ever sees half a run.
"""

from __future__ import annotations

import os
import platform
import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway import __version__
from headway.base.clocks import Clock, SystemClock
from headway.base.errors import ConfigError, from_os_error
from headway.base.failpoints import drill_file, parse_faults
from headway.base.files import fsync_directory, make_directory, write_atomic, write_json
from headway.recipe.digests import section_digests
from headway.recipe.spec import Spec
from headway.rundir.layout import RunDirectory


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """What stands beside the Spec in ``run.json``."""

    data: str  # path of the data directory
    deployment: dict[str, Any]  # resolved
    recipe_path: str = ""  # where the recipe was read from, for people
    overrides: tuple[str, ...] = ()  # --set, as given
    deployment_path: str = ""  # --deployment, as given; empty: the preset's own, or the defaults
    versions: dict[str, str] = field(default_factory=lambda: {"headway": __version__, "python": platform.python_version()})
    author: str = "automatic"  # or a person


def create_run(
    root: Path,
    *,
    spec: Spec,
    recipe_text: str,
    info: RunInfo,
    drill_faults: list[dict] | None = None,
    plan: dict | None = None,
    clock: Clock | None = None,
) -> RunDirectory:
    """Create ``root``. ``drill_faults``: None for a production run; a list (also an empty one) makes the run a drill."""
    root = Path(root)
    _refuse(root)
    if spec.is_draft:
        raise ConfigError(
            "this spec is a draft: its data is not built yet",
            "a run starts from a frozen spec",
            "build the data first: headway data build RECIPE",
        )
    parse_faults(drill_faults or [])
    make_directory(root.parent, "parent of the run directory")
    temporary = root.with_name(f".{root.name}.{os.getpid()}.{secrets.token_hex(4)}.new")
    try:
        _fill(RunDirectory(temporary), spec, recipe_text, plan)
        write_json(temporary / "run.json", _description(root, spec, info, drill_faults, clock or SystemClock()))
        if drill_faults is not None:
            write_json(drill_file(temporary), {"kind": "drill", "schema_version": 1, "faults": drill_faults})
        _publish(temporary, root)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return RunDirectory.open(root)


def _refuse(root: Path) -> None:
    """Never build upon something that exists: say what it is."""
    if not (root.exists() or root.is_symlink()):
        return
    if (root / "run.json").is_file():
        raise ConfigError(
            f"{root} is a run already",
            "a run directory is created once",
            f"go on with: headway resume {root}, or choose another directory",
        )
    if root.is_dir():
        what = "a directory that holds other files" if any(root.iterdir()) else "an empty directory"
    else:
        what = "a file" if root.is_file() else "not a directory"
    raise ConfigError(
        f"{root} exists: {what}",
        "a run directory is created whole, in a place that is free",
        "choose another directory, or remove that one",
    )


def _fill(run: RunDirectory, spec: Spec, recipe_text: str, plan: dict | None) -> None:
    make_directory(run.root, "run directory")
    for directory in (run.lease, run.events, run.segments, run.checkpoints):
        make_directory(directory)
    write_json(run.spec_file, spec.to_json())
    write_atomic(run.recipe_file, recipe_text.encode())
    if plan is not None:
        write_json(run.plan_file, plan)


def _description(root: Path, spec: Spec, info: RunInfo, drill_faults: list[dict] | None, clock: Clock) -> dict:
    return {
        "kind": "run",
        "schema_version": 1,
        "name": spec.name,
        "run_id": secrets.token_hex(8),
        "drill": drill_faults is not None,
        "created": clock.stamp().to_json(),
        "data": info.data,
        "deployment": info.deployment,
        "spec_digest": spec.digest(),
        "digests": section_digests(spec),
        "recipe_digest": spec.recipe_digest,
        "recipe_path": info.recipe_path,
        "deployment_path": info.deployment_path,
        "overrides": list(info.overrides),
        "versions": info.versions,
        "author": info.author,
    }


def _publish(temporary: Path, root: Path) -> None:
    try:
        fsync_directory(temporary)
        os.rename(temporary, root)  # onto a directory that somebody filled meanwhile: refused by the system
        fsync_directory(root.parent)
    except OSError as error:
        _refuse(root)
        raise from_os_error(error, root, "cannot create run directory") from error

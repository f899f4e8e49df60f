"""Commands that a run's records name are run for nobody but who wrote them (law 11).

A person gives ``fleet.start``, ``fleet.python`` and ``supervise.requeue`` at ``headway run``, and they stand in the run directory
for whoever takes the run over. A directory that another account wrote is data from elsewhere: nothing in it is executed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from headway.base.errors import EnvironmentFault
from headway.rundir.layout import RunDirectory
from headway.rundir.segments import read_segments


def refuse_foreign(run: RunDirectory, deployment: dict[str, Any]) -> None:
    """``deployment``: in force, as the records of ``run`` have it. EnvironmentFault where others wrote its commands."""
    fleet = deployment.get("fleet") or {}
    named = {"fleet.start": fleet.get("start"), "fleet.python": fleet.get("python")}
    named["supervise.requeue"] = deployment.get("supervise", {}).get("requeue")
    commands = [name for name, value in named.items() if value]
    segments = read_segments(run)
    files = [run.run_file, *(run.segment(segment.id) / "segment.json" for segment in segments[-1:] if segment.deployment)]
    foreign = [path for path in files if commands and _owner(path) != os.geteuid()]
    if foreign:
        raise EnvironmentFault(
            f"{foreign[0]} was written by another account, and names commands: {', '.join(commands)}",
            "nothing from a directory that others wrote is executed",
            "look at them, and give the deployment yourself: headway resume RUN --deployment FILE",
        )


def _owner(path: Path) -> int:
    return path.stat().st_uid

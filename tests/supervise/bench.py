"""What the tests of the supervisor share: choosing among the stand-in's checkpoints, and starting it."""

from __future__ import annotations

import sys
from pathlib import Path

from headway.base.errors import RunError
from headway.base.files import write_json
from headway.monitor.ledger import Ledger, build_ledger
from headway.rundir.events import read_events
from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import read_all_steps
from headway.rundir.segments import Segment, current_chain, is_admissible, read_segments
from headway.store.admissible import Choice
from headway.store.names import parse_name
from headway.supervise.launcher import ProcessLauncher
from headway.supervise.options import SuperviseOptions

STANDIN = Path(__file__).with_name("standin.py")


def choose_file(run: RunDirectory, chain: list[Segment], refused: dict[str, str] | None = None) -> Choice:
    """As ``store.admissible.choose``, for checkpoints that are one file; content other than "whole" is damage."""
    names = sorted((n for p in run.checkpoints.iterdir() if (n := parse_name(p.name))), reverse=True)
    rejected = []
    for name in names:
        if not is_admissible(chain, name.segment, name.step):
            continue
        if (run.checkpoints / str(name)).read_text() == "whole":
            return Choice(checkpoint=str(name), segment=name.segment, step=name.step, rejected=rejected)
        rejected.append({"checkpoint": str(name), "reason": "damaged"})
    if rejected:
        raise RunError("no checkpoint of this run can be used")
    return Choice(checkpoint=None, segment=None, step=0, rejected=[])


def standin_launcher() -> ProcessLauncher:
    return ProcessLauncher(lambda run, segment: [sys.executable, str(STANDIN), str(run.root), "--segment", str(segment)])


def plan(run: RunDirectory, **fields: object) -> None:
    write_json(run.root / "standin.json", {"steps": 20, **fields})


def read_ledger(run: RunDirectory) -> Ledger:
    """The ledger of a run directory; it checks itself."""
    return build_ledger(read_events(run), read_all_steps(run), current_chain(read_segments(run)))


def quick(**changes: float) -> SuperviseOptions:
    values = {
        "ttl_seconds": 3.0,
        "hang_floor_seconds": 1.0,
        "startup_seconds": 20.0,
        "grace_seconds": 2.0,
        "hang_grace_seconds": 0.2,
    }
    values |= {"orphan_seconds": 2.0, "backoff_seconds": 0.0, "poll_seconds": 0.02}
    return SuperviseOptions(**{**values, **changes})  # type: ignore[arg-type]

"""Which checkpoints a finding of silent corruption puts under suspicion: those saved since the same check last found all sound.

    checks     sound at 40 ................ not at 80: the segment ends, error.json says so
    saves      40 (stands)   60 (suspect)   70 (suspect)

The trainer's finding in ``segments/NNNN/error.json`` is the record: it outlives supervisor and trainer. Where everything that was
ever saved is suspect, initial weights are what is known to be sound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headway.base.errors import HeadwayError
from headway.base.files import read_json
from headway.rundir.layout import RunDirectory
from headway.rundir.segments import read_segments
from headway.store.names import CheckpointName


def finding_of(run: RunDirectory, segment: int) -> dict[str, Any] | None:
    """{by, step, agreed, rank, host, parameter, ...} as the trainer of ``segment`` left it; None: it found nothing."""
    path = run.segment(segment) / "error.json"
    try:
        error = read_json(path, "error record") if path.exists() else None
    except HeadwayError:
        return None
    facts = error.get("corruption") if isinstance(error, dict) else None
    whole = isinstance(facts, dict) and all(type(facts.get(key)) is int for key in ("step", "agreed"))
    return facts if whole else None


def findings(run: RunDirectory) -> dict[int, dict[str, Any]]:
    """By segment."""
    found = ((segment.id, finding_of(run, segment.id)) for segment in read_segments(run))
    return {segment: facts for segment, facts in found if facts is not None}


def suspicion(run: RunDirectory) -> Callable[[CheckpointName], str]:
    """Why a checkpoint is suspect; empty: it is not. The run's records are read once."""
    found = findings(run)

    def reason_of(name: CheckpointName) -> str:
        for segment, facts in found.items():
            if name.segment <= segment and name.step > facts["agreed"]:
                return (
                    f"suspect: segment {segment} found silent corruption at step {facts['step']}, and the last check before it "
                    f"that found all sound was at step {facts['agreed']}"
                )
        return ""

    return reason_of


def all_suspect(run: RunDirectory, names: Iterable[CheckpointName]) -> bool:
    """Whether there is any of ``names``, and each is suspect."""
    reason_of, known = suspicion(run), list(names)
    return bool(known) and all(reason_of(name) for name in known)

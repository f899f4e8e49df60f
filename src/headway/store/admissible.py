"""Which checkpoint a run goes on from: the newest on the chain that is whole, and why newer ones were refused.

    on disk, newest first     g3-s00090  late commit of a replaced segment: not on the chain, no candidate
                              g4-s00080  flipped bit: rejected, said so
                              g4-s00060  recorded as saved, gone, not deleted by retention: rejected, 'missing'
                              g2-s00040  whole: chosen
    nothing whole left -> RunError with the list; never a fresh start.   nothing ever committed -> initial weights.

Order and admission follow from segment and step alone: no modification times, no clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.base.errors import RunError, from_os_error
from headway.base.records import read_records
from headway.rundir.layout import RunDirectory
from headway.rundir.segments import Segment, current_chain, is_admissible, read_segments
from headway.store.names import DELETED, MANIFEST, TOMBSTONE, CheckpointName, parse_name
from headway.store.verify import verify

MISSING = "missing: it was committed, and retention did not delete it"


@dataclass(frozen=True, kw_only=True)
class CheckpointInfo:
    """One directory under checkpoints/. ``committed``: it has a manifest (not yet: that it is whole)."""

    name: str
    segment: int
    step: int
    committed: bool
    admissible: bool


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Where to go on from. ``checkpoint`` None: nothing was ever committed on this chain; ``step`` is then 0."""

    checkpoint: str | None
    segment: int | None
    step: int
    rejected: list[dict[str, str]]  # {checkpoint, reason}, newest first: newer than the chosen one and refused


def list_checkpoints(run: RunDirectory) -> list[CheckpointInfo]:
    """Every checkpoint directory, in the order of the chain; admissible as the current chain stands."""
    return scan(run, current_chain(read_segments(run)))


def scan(run: RunDirectory, chain: list[Segment]) -> list[CheckpointInfo]:
    """Every checkpoint directory, admissible as ``chain`` stands."""
    try:
        names = [path.name for path in run.checkpoints.iterdir() if path.is_dir()] if run.checkpoints.is_dir() else []
        found = sorted(parsed for parsed in map(parse_name, names) if parsed is not None)
        return [
            CheckpointInfo(
                name=str(name),
                segment=name.segment,
                step=name.step,
                committed=(run.checkpoints / str(name) / MANIFEST).exists(),
                admissible=is_admissible(chain, name.segment, name.step),
            )
            for name in found
        ]
    except OSError as error:
        raise from_os_error(error, run.checkpoints, "cannot list checkpoints") from error


def deleted_names(run: RunDirectory) -> set[str]:
    """What retention deleted: recorded, or caught between the tombstone and the record."""
    recorded = {record.get("checkpoint") for record in read_records(run.checkpoints / DELETED).records}
    return recorded | {path.parent.name for path in run.checkpoints.glob(f"*/{TOMBSTONE}")}


def recorded_names(run: RunDirectory, chain: list[Segment]) -> set[str]:
    """What was once committed, by the trainers' save records and by the segments that were restored from it."""
    names = {segment.checkpoint for segment in chain if segment.checkpoint is not None}
    for segment in chain:
        records = read_records(run.steps_file(segment.id)).records
        names |= {r["checkpoint"] for r in records if isinstance(r, dict) and r.get("kind") == "save" and r.get("checkpoint")}
    return names


def choose(run: RunDirectory, chain: list[Segment], explicit: str | None = None) -> Choice:
    """The newest admissible checkpoint that verifies, or exactly ``explicit``.

    RunError when everything committed is damaged, or when ``explicit`` is missing, damaged or not on the chain.
    """
    if explicit is not None:
        return _exactly(run, chain, explicit)
    rejected: list[dict[str, str]] = []
    recorded = _on_chain(chain, recorded_names(run, chain))
    if not chain and any(info.committed for info in scan(run, chain)):
        raise RunError("there are checkpoints, but no segments", f"path: {run.segments}", "restore the segments' directories")
    for name in _candidates(run, chain, recorded):
        reason = _reason_against(run, str(name))
        if not reason:
            return Choice(checkpoint=str(name), segment=name.segment, step=name.step, rejected=rejected)
        rejected.append({"checkpoint": str(name), "reason": reason})
    if rejected or recorded:
        lines = [f"{entry['checkpoint']}: {entry['reason']}" for entry in rejected] or ["all that were recorded are gone"]
        raise RunError(
            "no checkpoint of this run can be used: " + "; ".join(lines),
            "a run that has committed checkpoints is never started again from scratch",
            f"restore one of them under {run.checkpoints} from a copy, or start a new run",
        )
    return Choice(checkpoint=None, segment=None, step=0, rejected=[])


def _candidates(run: RunDirectory, chain: list[Segment], recorded: set[CheckpointName]) -> list[CheckpointName]:
    """Admissible and once committed, newest on the chain first; what retention deleted is none."""
    present = {info.name for info in scan(run, chain) if info.committed}
    deleted = deleted_names(run)
    return sorted(_on_chain(chain, present) | {name for name in recorded if str(name) not in deleted}, reverse=True)


def _on_chain(chain: list[Segment], names: set[str]) -> set[CheckpointName]:
    parsed = (parse_name(name) for name in names)
    return {name for name in parsed if name is not None and is_admissible(chain, name.segment, name.step)}


def _reason_against(run: RunDirectory, name: str) -> str:
    """Empty when the checkpoint is whole."""
    directory = run.checkpoints / name
    if not (directory / MANIFEST).exists():
        return MISSING
    return "; ".join(verify(directory).reasons)


def _exactly(run: RunDirectory, chain: list[Segment], name: str) -> Choice:
    parsed, directory = parse_name(name), run.checkpoints / name
    usable = ", ".join(info.name for info in scan(run, chain) if info.committed and info.admissible) or "none"
    way_out = f"committed on the current chain: {usable}"
    if parsed is None or not directory.is_dir():
        raise RunError(f"checkpoint {name!r} does not exist", f"path: {directory}", way_out)
    if not (directory / MANIFEST).exists():
        raise RunError(f"checkpoint {name} was never committed, or lost its manifest", f"path: {directory}", way_out)
    if not is_admissible(chain, parsed.segment, parsed.step):
        raise RunError(
            f"checkpoint {name} is not on the current chain",
            "a checkpoint counts when its segment is on the chain and the next segment went on at or after its step",
            way_out,
        )
    if reason := _reason_against(run, name):
        raise RunError(f"checkpoint {name} is damaged: {reason}", f"path: {directory}", way_out)
    return Choice(checkpoint=name, segment=parsed.segment, step=parsed.step, rejected=[])

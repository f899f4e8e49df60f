"""Which checkpoint a run goes on from: the newest on the chain that is whole, and why newer ones were refused.

    on disk, newest first     g3-s00090  late commit of a replaced segment: not on the chain, no candidate
                              g4-s00080  flipped bit: rejected, said so
                              g4-s00060  recorded as saved, gone, not deleted by retention: rejected, 'missing'
                              g2-s00040  whole: chosen
    nothing whole left -> RunError with the list; never a fresh start.   nothing ever committed -> initial weights.
    all that was ever saved is suspect of silent corruption (``suspects``) -> initial weights: they are known to be sound.

Whole is not enough: a checkpoint that names another run or another spec, or whose content is not what this run's own record
of that save says, was copied in, and is refused like a damaged one.

Order and admission follow from segment and step alone: no modification times, no clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.base.digests import short
from headway.base.errors import HeadwayError, RunError, from_os_error
from headway.base.records import read_records
from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import read_steps
from headway.rundir.segments import Segment, is_admissible, read_segments
from headway.store.manifest import load_manifest
from headway.store.names import DELETED, MANIFEST, REJECTED, TOMBSTONE, CheckpointName, parse_name
from headway.store.suspects import all_suspect, suspicion
from headway.store.verify import Verdict, verify
from headway.store.writer.outcomes import committed_digests

MISSING = "missing: it was committed, and retention did not delete it"


@dataclass(frozen=True, kw_only=True)
class CheckpointInfo:
    """One directory under checkpoints/. ``committed``: it has a manifest (not yet: that it is whole)."""

    name: str
    segment: int
    step: int
    committed: bool
    admissible: bool
    is_link: bool = False  # to a directory somewhere else


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Where to go on from. ``checkpoint`` None: nothing was ever committed on this chain; ``step`` is then 0."""

    checkpoint: str | None
    segment: int | None
    step: int
    rejected: list[dict[str, str]]  # {checkpoint, reason}, newest first: newer than the chosen one and refused


def list_checkpoints(run: RunDirectory, chain: list[Segment]) -> list[CheckpointInfo]:
    """Every checkpoint directory, by segment and step; admissible as ``chain`` stands."""
    try:
        return [
            CheckpointInfo(
                name=str(name),
                segment=name.segment,
                step=name.step,
                committed=(run.checkpoints / str(name) / MANIFEST).exists(),
                admissible=is_admissible(chain, name.segment, name.step),
                is_link=(run.checkpoints / str(name)).is_symlink(),
            )
            for name in _names(run)
            if (run.checkpoints / str(name)).is_dir()
        ]
    except OSError as error:
        raise from_os_error(error, run.checkpoints, "cannot list checkpoints") from error


def saving_segments(run: RunDirectory) -> set[int]:
    """Ids of the segments that ever began a save, as the names of checkpoints tell, also of deleted ones.

    A new segment takes none of these ids, even if the segment's own record is lost: its old checkpoints would become
    admissible as the new one's.
    """
    try:
        deleted = (parse_name(str(name)) for name in deleted_names(run))
        return {name.segment for name in (*_names(run), *deleted) if name is not None}
    except OSError as error:
        raise from_os_error(error, run.checkpoints, "cannot list checkpoints") from error


def _names(run: RunDirectory) -> list[CheckpointName]:
    entries = run.checkpoints.iterdir() if run.checkpoints.is_dir() else ()
    return sorted(name for path in entries if (name := parse_name(path.name)) is not None)


def refusals(run: RunDirectory) -> list[dict[str, str]]:
    """Every {checkpoint, reason} that was ever refused: on the way to a segment, or when retention read it back."""
    found = [entry for segment in read_segments(run) for entry in segment.rejected]
    return found + [record for record in read_records(run.checkpoints / REJECTED).records if record.get("checkpoint")]


def recorded_deletions(run: RunDirectory) -> set[str]:
    return {str(record.get("checkpoint")) for record in read_records(run.checkpoints / DELETED).records}


def deleted_names(run: RunDirectory) -> set[str]:
    """What retention deleted: recorded, or caught between the tombstone and the record."""
    return recorded_deletions(run) | {path.parent.name for path in run.checkpoints.glob(f"*/{TOMBSTONE}")}


def recorded_names(run: RunDirectory, chain: list[Segment]) -> set[str]:
    """What was once committed, as writers, trainers and the segments that were restored from it recorded."""
    return {segment.checkpoint for segment in chain if segment.checkpoint is not None} | set(_recorded_digests(run, chain))


def _recorded_digests(run: RunDirectory, chain: list[Segment]) -> dict[str, object]:
    """The digest of the state (or None) by the name of the checkpoint, as writers and trainers recorded their saves."""
    rows = (row for segment in chain for row in read_steps(run, segment.id) if row["kind"] == "save")
    by_trainers = {row["checkpoint"]: row.get("digest") for row in rows if isinstance(row.get("checkpoint"), str)}
    return committed_digests(run, [segment.id for segment in chain]) | by_trainers


def choose(
    run: RunDirectory, chain: list[Segment], explicit: str | None = None, refused: Mapping[str, str] | None = None
) -> Choice:
    """The newest admissible checkpoint that verifies, or exactly ``explicit``.

    ``refused``: reasons by name; what a trainer could not load is passed over, although it looks whole from here.
    RunError when everything committed is damaged, or when ``explicit`` is missing, damaged or not on the chain.
    """
    if explicit is not None:
        return _exactly(run, chain, explicit)
    rejected: list[dict[str, str]] = []
    recorded = _on_chain(chain, recorded_names(run, chain))
    if not chain and any(info.committed for info in list_checkpoints(run, chain)):
        raise RunError("there are checkpoints, but no segments", f"path: {run.segments}", "restore the segments' directories")
    reason_of = judge(run, chain)
    for name in _candidates(run, chain, recorded):
        reason = (refused or {}).get(str(name)) or reason_of(str(name))
        if not reason:
            return Choice(checkpoint=str(name), segment=name.segment, step=name.step, rejected=rejected)
        rejected.append({"checkpoint": str(name), "reason": reason})
    if all_suspect(run, recorded | set(_candidates(run, chain, recorded))):
        return Choice(checkpoint=None, segment=None, step=0, rejected=rejected)
    if rejected or recorded:
        lines = [f"{entry['checkpoint']}: {entry['reason']}" for entry in rejected] or ["all that were recorded are gone"]
        raise RunError(
            "no checkpoint of this run can be used: " + "; ".join(lines),
            "a run with committed checkpoints is never started again from scratch, nor goes on from those of another",
            _way_out(run),
        )
    return Choice(checkpoint=None, segment=None, step=0, rejected=[])


def _way_out(run: RunDirectory) -> str:
    mirror = run.info()["deployment"].get("checkpoints", {}).get("mirror")
    if mirror is not None:
        return f"headway resume {run.root} looks on the mirror {mirror} too, and fetches what it finds whole"
    return f"restore one of them under {run.checkpoints} from a copy, remove what belongs to another run, or start a new run"


def _candidates(run: RunDirectory, chain: list[Segment], recorded: set[CheckpointName]) -> list[CheckpointName]:
    """Admissible and once committed, newest on the chain first; what retention deleted is none."""
    present = {info.name for info in list_checkpoints(run, chain) if info.committed}
    deleted = deleted_names(run)
    return sorted(_on_chain(chain, present) | {name for name in recorded if str(name) not in deleted}, reverse=True)


def _on_chain(chain: list[Segment], names: set[str]) -> set[CheckpointName]:
    parsed = (parse_name(name) for name in names)
    return {name for name in parsed if name is not None and is_admissible(chain, name.segment, name.step)}


def reason_against(run: RunDirectory, chain: list[Segment], name: str) -> str:
    """Empty when the checkpoint is whole and this run's own."""
    return judge(run, chain)(name)


def judge(run: RunDirectory, chain: list[Segment], look: Callable[[Path], Verdict] | None = None) -> Callable[[str], str]:
    """As ``reason_against``, for many names: the run's own records are read once.

    ``look``: how closely the directory is looked at (None: ``verify``, which reads everything).
    """
    info, recorded, suspect = run.info(), _recorded_digests(run, chain), suspicion(run)

    def reason_of(name: str) -> str:
        directory = run.checkpoints / name
        if not (directory / MANIFEST).exists():
            return MISSING
        if (parsed := parse_name(name)) is not None and (reason := suspect(parsed)):
            return reason
        return _foreign(info, recorded, directory) or "; ".join((look or verify)(directory).reasons)

    return reason_of


def _foreign(info: dict[str, Any], recorded: dict[str, object], directory: Path) -> str:
    """Why it is not this run's own; empty also for a manifest that cannot be read, which ``verify`` describes better."""
    try:
        manifest = load_manifest(directory)
    except HeadwayError:
        return ""
    state, digest = manifest.state, recorded.get(directory.name)
    if state.get("run_id", info["run_id"]) != info["run_id"]:
        return f"belongs to run {state['run_id']}"
    if state.get("spec_digest", info["spec_digest"]) != info["spec_digest"]:
        return f"belongs to a run of another spec ({short(str(state['spec_digest']))})"
    if digest not in (None, manifest.state_digest):
        return f"its content is not what this run saved under that name ({short(str(digest))})"
    return ""


def _exactly(run: RunDirectory, chain: list[Segment], name: str) -> Choice:
    parsed, directory = parse_name(name), run.checkpoints / name
    infos = list_checkpoints(run, chain)
    usable = ", ".join(info.name for info in infos if info.committed and info.admissible) or "none"
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
    if reason := reason_against(run, chain, name):
        raise RunError(f"checkpoint {name} is damaged or not this run's own: {reason}", f"path: {directory}", way_out)
    return Choice(checkpoint=name, segment=parsed.segment, step=parsed.step, rejected=[])

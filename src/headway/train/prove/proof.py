"""The whole proof of ``headway prove``: layouts against one process, a kill, changes of layout, the recipe's own precision.

    Request  ->  records, one by one as they are measured  ->  the evidence, which is the last of them

    {kind: "begin", layouts, ranks, steps}    {kind: "ready", seconds}    {kind: "layout", name, verdict, findings, ...}
    {kind: "continuation", name, verdict, findings, saved_at, killed_at}
    {kind: "proof", holds, environment, tolerances, layouts: [...], continuations: [...]}

Everything is the recipe's architecture in miniature (``miniature.py``), in float32, where differences are those of the order of
sums alone; and once in the precision that the recipe trains in.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from headway.base.errors import RunError
from headway.parallel.local_ranks import on_ranks
from headway.parallel.mesh import Axes
from headway.recipe.engine_layouts import Sizes, Task, runs
from headway.recipe.spec import PrecisionSpec, Spec
from headway.train.environment import full_environment
from headway.train.prove.compare import BFLOAT16, REASONS, TOLERANCES, Finding, compare
from headway.train.prove.continuation import Ended, Leg, train_alone, train_rank
from headway.train.prove.layouts import Entry, asked, chosen, runnable, widest
from headway.train.prove.miniature import small_spec
from headway.train.prove.rank import CURVE_STEPS, Work, measure_alone, measure_rank

MICRO_SEQUENCES = 3
"""Of one forward pass: four passes alone, and parts that do not divide for three replicas."""
QUICK_CHANGES = 1
EXACT, CONTINUED = "the same state, to the bit", "the curve goes on"
HOLDS, DIFFERS, FAILED, NOT_RUN = "holds", "differs", "failed", "not run"
Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Request:
    """``spec``: of the recipe, at its real size. ``layouts``: named by a person, instead of the table; ``ranks``: at most."""

    spec: Spec
    ranks: int
    layouts: tuple[dict[str, Any], ...] = ()
    steps: int = CURVE_STEPS
    quick: bool = False


@dataclass
class _Proof:
    work: Work
    entries: list[Entry]
    records: list[Record] = field(default_factory=list)


def prove(request: Request) -> Iterator[Record]:
    """The records, the evidence last. ConfigError for a layout that a person named and that cannot be run."""
    small = small_spec(request.spec)
    exact = replace(small, precision=PrecisionSpec("float32"))
    if request.layouts:
        entries = asked(exact, request.layouts, request.ranks)
    else:
        entries = chosen(exact, request.ranks, quick=request.quick)
    work = Work(exact, MICRO_SEQUENCES, request.steps)
    ranks = max((entry.axes.world for entry in runnable(entries)), default=1)
    yield {"kind": "begin", "layouts": [entry.name for entry in runnable(entries)], "ranks": ranks, "steps": work.steps}
    found: list[Record] = []
    with _one_thread():
        began = time.monotonic()
        on_ranks(_ready, ranks)
        yield {"kind": "ready", "ranks": ranks, "seconds": round(time.monotonic() - began, 3)}
        proof = _Proof(work, entries)
        for record in _records(proof, request, small):
            found.append(record)
            yield record
    yield _evidence(work, found, ranks)


def _ready() -> None:
    """A process that answers has imported what it needs."""


def _records(proof: _Proof, request: Request, small: Spec) -> Iterator[Record]:
    yield from _layouts(proof)
    yield from _continuations(proof, changes=QUICK_CHANGES if request.quick else len(proof.entries))
    if small.precision.compute != "float32" or small.precision.modules:
        yield from _own_precision(proof, small)


# --- layouts against one process ----------------------------------------------------------------------------------------


def _layouts(proof: _Proof) -> Iterator[Record]:
    reference = measure_alone(proof.work)
    for entry in proof.entries:
        if entry.reason:
            yield _record("layout", entry.name, NOT_RUN, reason=entry.reason, axes=_axes(entry), precision="float32")
            continue
        began = time.monotonic()
        try:
            measured = on_ranks(measure_rank, entry.axes.world, proof.work, entry.axes)[0]
        except RunError as error:
            yield _record("layout", entry.name, FAILED, reason=str(error), axes=_axes(entry), precision="float32")
            continue
        findings = compare(measured, reference)
        yield _judged("layout", entry.name, findings, began, axes=_axes(entry), precision="float32")


def _own_precision(proof: _Proof, small: Spec) -> Iterator[Record]:
    """Once, under the widest layout that the precision allows."""
    tasks = Task.of(small)
    able = [entry for entry in runnable(proof.entries) if all(runs(task, Sizes.of(entry.axes)) for task in tasks)]
    entry, compute = widest(able), small.precision.compute
    if entry is None:
        return
    work, began = replace(proof.work, spec=small), time.monotonic()
    try:
        measured = on_ranks(measure_rank, entry.axes.world, work, entry.axes)[0]
    except RunError as error:
        yield _record("layout", f"{entry.name}, {compute}", FAILED, reason=str(error), axes=_axes(entry), precision=compute)
        return
    findings = compare(measured, measure_alone(work), wider=BFLOAT16)
    yield _judged("layout", f"{entry.name}, {compute}", findings, began, axes=_axes(entry), precision=compute)


# --- a kill, and changes of layout --------------------------------------------------------------------------------------


def _continuations(proof: _Proof, *, changes: int) -> Iterator[Record]:
    first = widest(proof.entries)
    if first is None or proof.work.steps < 2:
        return
    save = proof.work.steps // 2
    kill = min(save + 1, proof.work.steps - 1)
    facts = {"saved_at": save, "killed_at": kill}
    with TemporaryDirectory(prefix="headway-prove-") as root:
        try:
            whole = on_ranks(train_rank, first.axes.world, Leg(work=proof.work, root=root, end=1), first.axes)[0]
            _kill(proof, Leg(work=proof.work, root=root, end=2, save=save, kill=kill), first.axes)
        except RunError as error:
            yield _record("continuation", f"{first.name}, killed", FAILED, reason=str(error), **facts)
            return
        same = (first.name, first.axes)
        others = [(entry.name, entry.axes) for entry in runnable(proof.entries) if entry is not first]
        for number, (name, axes) in enumerate([same, ("one process", None), *others][: changes + 2], start=3):
            leg, began = Leg(work=proof.work, root=root, end=number, load=save), time.monotonic()
            label = f"{first.name}, killed -> {'the same' if axes is first.axes else name}"
            try:
                ended = train_alone(leg) if axes is None else on_ranks(train_rank, axes.world, leg, axes)[0]
            except RunError as error:
                yield _record("continuation", label, FAILED, reason=str(error), **facts)
                continue
            findings = [_exact(ended, whole)] if axes is first.axes else []
            findings.append(_curve(ended, whole, exact=axes is first.axes))
            yield _judged("continuation", label, findings, began, **facts)


def _kill(proof: _Proof, leg: Leg, axes: Axes) -> None:
    """RunError where it was not the kill that ended it."""
    try:
        on_ranks(train_rank, axes.world, leg, axes)
    except RunError:
        if not any(Path(leg.root).glob(f"*s{leg.save:08d}/MANIFEST.json")):
            raise
        return
    raise RunError("a training that was to be killed ended by itself", "every process is ended by SIGKILL")


def _exact(ended: Ended, whole: Ended) -> Finding:
    """Weights, moments and the guard's history behind the last step."""
    return Finding(EXACT, 0.0 if ended.state_digest == whole.state_digest else 1.0, 0.0, ended.state_digest)


def _curve(ended: Ended, whole: Ended, *, exact: bool) -> Finding:
    pairs = list(zip(ended.losses, whole.losses[ended.first :], strict=True))
    apart = [abs(a - b) / abs(b) if math.isfinite(a) else math.inf for a, b in pairs]
    at = max(range(len(apart)), key=apart.__getitem__)
    return Finding(CONTINUED, apart[at], 0.0 if exact else TOLERANCES["curve"], f"step {ended.first + at + 1}")


# --- records ------------------------------------------------------------------------------------------------------------


def _judged(kind: str, name: str, findings: list[Finding], began: float, **facts: Any) -> Record:
    verdict = HOLDS if all(finding.holds for finding in findings) else DIFFERS
    shown = [
        {"what": f.what, "difference": _finite(f.difference), "tolerance": f.tolerance, "where": f.where, "holds": f.holds}
        for f in findings
    ]
    return _record(kind, name, verdict, seconds=round(time.monotonic() - began, 3), findings=shown, **facts)


def _record(kind: str, name: str, verdict: str, **facts: Any) -> Record:
    return {"kind": kind, "name": name, "verdict": verdict, "reason": "", "seconds": None, "findings": []} | facts


def _finite(value: float) -> float | None:
    """JSON has no infinity: None where there was nothing to compare, or no number."""
    return value if math.isfinite(value) else None


def _axes(entry: Entry) -> dict[str, Any]:
    return vars(entry.axes)


def _evidence(work: Work, found: list[Record], ranks: int) -> Record:
    model = work.spec.model
    return {
        "kind": "proof",
        "schema_version": 1,
        "holds": all(record["verdict"] in (HOLDS, NOT_RUN) for record in found) and any(r["verdict"] == HOLDS for r in found),
        "environment": full_environment(),
        "device": "cpu, gloo",
        "ranks": ranks,
        "steps": work.steps,
        "miniature": {
            "digest": work.spec.digest(),
            "layers": model.layers,
            "width": model.width,
            "vocabulary": model.vocabulary,
            "batch_sequences": work.spec.stages[0].phases[0].batch_sequences,
            "sequence_tokens": work.spec.stages[0].sequence_length,
        },
        "tolerances": {what: {"tolerance": value, "reason": REASONS[what]} for what, value in TOLERANCES.items()},
        "wider_in_16_bits": BFLOAT16,
        "layouts": [record for record in found if record["kind"] == "layout"],
        "continuations": [record for record in found if record["kind"] == "continuation"],
    }


@contextmanager
def _one_thread() -> Iterator[None]:
    """As the ranks have: the order of sums depends on it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

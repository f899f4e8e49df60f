"""MFU and HFU of a run, under every convention, with the peak that they are a share of; or why there is none (G2, G3).

    MFU, healthy      FLOPs that the model needs for the kept steps   / (time of those steps x devices there x dense peak)
    HFU, healthy      ... and that layouts compute again               / the same
    MFU, end-to-end   FLOPs of the committed tokens                    / (all time x devices asked for x dense peak)

Time of a step holds its wait for input. Replayed steps are in neither numerator (G4). The peak is the dense one that the
deployment states, else the one of its chip in the precision of the run: never another chip's. A share above 1 is impossible, and
an alarm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.base.errors import ConfigError
from headway.formulas.chips import dense_peak, known_chip
from headway.formulas.flops import Convention, flops_formula, flops_per_token
from headway.formulas.recompute import Recompute, hardware_flops_per_token
from headway.monitor.capacity import Capacity, devices_by_segment
from headway.monitor.ledger import Ledger
from headway.recipe.schedules import Schedule
from headway.recipe.spec import Spec
from headway.rundir.categories import Category
from headway.rundir.segments import Segment, layout_of


@dataclass(frozen=True, kw_only=True)
class Peak:
    """FLOP/s of one device, dense; None: unknown, and ``words`` say why."""

    flops: float | None
    device: str
    words: str


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Under one convention; shares of the peak, 1.0 is all of it. None: nothing was timed."""

    convention: Convention
    formula: str
    mfu: float | None
    hfu: float | None
    mfu_end_to_end: float | None


@dataclass(frozen=True, kw_only=True)
class Utilisation:
    peak: Peak
    shares: tuple[Shares, ...] = ()

    @property
    def alarm(self) -> str:
        """Empty: none."""
        highest = max((share for one in self.shares for share in (one.mfu, one.hfu) if share is not None), default=0.0)
        if highest <= 1:
            return ""
        return f"a utilisation of {highest:.1%} is impossible: the peak, the number of devices or the clock is wrong"

    def to_json(self) -> dict[str, Any]:
        shares = [vars(one) | {"convention": one.convention.value} for one in self.shares]
        return {"peak": vars(self.peak), "shares": shares, "alarm": self.alarm}


def peak_of(deployment: Mapping[str, Any], precision: str) -> Peak:
    """Of a resolved deployment."""
    given = deployment.get("accelerator")
    device = given.get("kind") if isinstance(given, Mapping) else given
    name, stated = str(device or "not named"), given.get("peak_flops") if isinstance(given, Mapping) else None
    if isinstance(stated, int | float) and stated > 0:
        return Peak(flops=float(stated), device=name, words="dense, as the deployment states it")
    try:
        chip = known_chip(name)
        if chip is None:
            return Peak(flops=None, device=name, words="the deployment gives no dense peak, and no table knows the device")
        words = f"dense {precision} of {chip.name}{'' if chip.verified else ', not verified'} ({chip.source})"
        return Peak(flops=dense_peak(chip, precision), device=chip.name, words=words)
    except ConfigError as error:
        return Peak(flops=None, device=name, words=str(error))


def utilisation(
    ledger: Ledger,
    *,
    capacity: Capacity,
    steps: Mapping[int, list[dict]],
    segments: Sequence[Segment],
    deployment: Mapping[str, Any],
    spec: Spec,
) -> Utilisation:
    """``deployment``: resolved, as the run was created with it."""
    peak = peak_of(deployment, spec.precision.compute)
    if peak.flops is None:
        return Utilisation(peak=peak)
    work = _work(ledger, steps, segments, deployment, spec)
    device_ns = sum(ns * devices for _, ns, devices, _ in work)
    shares = []
    for convention in Convention:
        model = {stage.name: flops_per_token(spec.model, stage.sequence_length, convention) for stage in spec.stages}
        needed = sum(tokens * model[stage] for tokens, _, _, (stage, _) in work)
        executed = {kind: _hardware(spec, convention, *kind, deployment) for kind in {kind for *_, kind in work}}
        carried = sum(tokens * executed[kind] for tokens, _, _, kind in work)
        available = device_ns / 1e9 * peak.flops
        committed = _committed_flops(ledger.committed.steps, spec, model)
        over_all = capacity.total / 1e9 * peak.flops
        shares.append(
            Shares(
                convention=convention,
                formula=flops_formula(spec.model, convention),
                mfu=needed / available if available else None,
                hfu=carried / available if available else None,
                mfu_end_to_end=committed / over_all if over_all else None,
            )
        )
    return Utilisation(peak=peak, shares=tuple(shares))


Work = tuple[int, int, int, tuple[str, str]]
"""Tokens of a kept step, its ns, its devices, (stage, recomputation)."""


def _work(
    ledger: Ledger,
    steps: Mapping[int, list[dict]],
    segments: Sequence[Segment],
    deployment: Mapping[str, Any],
    spec: Spec,
) -> list[Work]:
    kept_ns: dict[tuple[int, int], int] = {}
    for one in ledger.intervals:
        if one.segment is not None and one.step is not None and one.category in (Category.PRODUCTIVE, Category.DATA_STALL):
            kept_ns[one.segment, one.step] = kept_ns.get((one.segment, one.step), 0) + one.ns
    devices, in_force = devices_by_segment(segments, deployment), {one.id: one.deployment or deployment for one in segments}
    lengths = {stage.name: stage.sequence_length for stage in spec.stages}
    found: list[Work] = []
    for segment, rows in steps.items():
        for row in rows:
            ns, stage = kept_ns.get((segment, row.get("step", -1)), 0), str(row.get("stage"))
            if row["kind"] == "step" and ns and stage in lengths and segment in devices:
                tokens = row["sequences"] * lengths[stage] if type(row.get("sequences")) is int else row["targets"]
                kind = (stage, str(layout_of(dict(in_force[segment]), stage).get("recompute", "none")))
                found.append((tokens, ns, devices[segment].there, kind))
    return found


def _hardware(spec: Spec, convention: Convention, stage: str, recompute: str, deployment: Mapping[str, Any]) -> float:
    length = next(one.sequence_length for one in spec.stages if one.name == stage)
    flash = bool((deployment.get("implementation") or {}).get("flash", True))
    return hardware_flops_per_token(spec.model, length, convention, Recompute(recompute), flash=flash)


def _committed_flops(step: int, spec: Spec, per_token: Mapping[str, float]) -> float:
    """Of all tokens up to ``step``, each at its stage's sequence length."""
    schedule, flops = Schedule(spec), 0.0
    place = schedule.place(min(step, schedule.total_steps))
    for index, stage in enumerate(spec.stages[: place.stage + 1]):
        sequences = stage.sequences if index < place.stage else place.first_sequence
        flops += sequences * stage.sequence_length * per_token[stage.name]
    return flops

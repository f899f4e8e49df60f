"""What failures will cost, by every formula side by side, and the simulated distribution when it is asked for.

    M   mean time between interruptions of the job    R   detection + restart     T0   useful seconds
    tau time between checkpoints                      c   what one save costs

A closed form is one number under one assumption; its range is the range of T0, M, c and tau. The simulation knows classes of
faults, nodes in reserve and what checkpoints are kept; its range is the spread of histories (p5 to p95) at the middle inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from headway.formulas.checkpoint_interval import (
    cost_for_which_young_says,
    daly_interval_seconds,
    exact_interval_seconds,
    interval_quantity,
    overhead_shares,
    young_interval_seconds,
)
from headway.formulas.failure_rates import SMALL_JOB_DEVICES, device_between, job_between, small_job_divergence
from headway.formulas.failures import (
    Interruptions,
    expected_failures,
    failures_over_wall,
    lost_seconds_first_order,
    recovery_quantity,
    wall_seconds_daly,
    wall_seconds_first_order,
    wall_seconds_safe_restarts,
    wall_seconds_self_consistent,
)
from headway.formulas.quantity import Input, Quantity, unknown
from headway.plan.facts import PlanFacts
from headway.plan.plan import Cell, Column, Section, Table

if TYPE_CHECKING:
    from headway.recipe.deployment import Deployment

Wall = Callable[[float, Interruptions], float | None]
FASTER_THAN_RECOVERY = "failures come faster than work is saved: practically never done"


@dataclass(frozen=True)
class FailureFacts:
    """The symbols of the formulas for one plan, as quantities with their ranges."""

    facts: PlanFacts

    @property
    def applies(self) -> bool:
        """A rate is stated, or the device is one whose fleets have published theirs."""
        deployment = self.facts.deployment
        return deployment.between_failures is not None or deployment.chip is not None

    @cached_property
    def M(self) -> Quantity:
        deployment, failures = self.facts.deployment, self.facts.deployment.failures
        if failures.per_device is None and failures.every is not None:
            name = "mean_time_between_interruptions"
            return Quantity(name, failures.every, "seconds", "stated", {}, "the deployment: failures.every")
        return job_between(device_between(failures.per_device, deployment.world), deployment.world)

    @cached_property
    def R(self) -> Quantity:
        failures = self.facts.deployment.failures
        inputs: dict[str, Input] = {"detection": failures.detection, "restart": failures.restart}
        value = failures.detection + failures.restart
        return Quantity("recovery_seconds", value, "seconds", "detection + restart", inputs, "the deployment: failures")

    @cached_property
    def T0(self) -> Quantity:
        return self.facts.training_seconds

    @cached_property
    def c(self) -> Quantity:
        return self.facts.save_seconds

    @cached_property
    def tau(self) -> Quantity:
        return checkpoint_interval(self.facts)

    @property
    def known(self) -> bool:
        return self.T0.value is not None and self.tau.value is not None

    def symbols(self, names: str) -> dict[str, Input]:
        return {name: getattr(self, name) for name in names.split()}

    def interruptions(self, tau: float | None = None) -> Interruptions:
        """At the middle of all ranges; ``tau``: another interval than the declared one."""
        return Interruptions(self.M.number(), self.R.number(), tau or self.tau.number(), self.c.number())

    def over_corners(self, compute: Wall, save: bool = True) -> list[float | None]:
        """``compute`` at the ends of all ranges; step time stands in T0 and in tau, so these go together."""
        steps = [(_end(self.T0, side), _end(self.tau, side)) for side in SIDES]
        ends = itertools.product(steps, [_end(self.M, side) for side in SIDES], [_end(self.c, side) for side in SIDES])
        return [compute(T0, Interruptions(M, self.R.number(), tau, c if save else 0.0)) for (T0, tau), M, c in ends]


SIDES = ("low", "high")


def _end(quantity: Quantity, side: str) -> float:
    bound = quantity.low if side == "low" else quantity.high
    return quantity.number() if bound is None else bound


def checkpoint_interval(facts: PlanFacts) -> Quantity:
    """Seconds of training between two checkpoints, by time or by steps, as the deployment declares it."""
    policy = facts.deployment.checkpoints
    if policy.every is not None:
        return Quantity("checkpoint_interval", policy.every, "seconds", "stated", {}, "the deployment: checkpoints.every")
    tokens = policy.every_steps * facts.tokens.number() / facts.steps.number()
    return facts.spent("checkpoint_interval", tokens, "steps x step time")


def failures_section(facts: PlanFacts) -> Section | None:
    """None where no rate is stated and none can be assumed."""
    symbols = FailureFacts(facts)
    if not symbols.applies:
        return None
    if not symbols.known:
        return Section("Failures", (symbols.M, symbols.R, unknown("expected_failures", "times", symbols.T0.formula)))
    daly = _daly(symbols)
    quantities = [symbols.M, symbols.R, _expected(symbols), _lost_first_order(symbols), daly]
    if daly.value is not None:
        quantities += [_over_wall(symbols, daly), _effective_share(symbols, daly)]
    earned = earned_by_shrinking(symbols)
    quantities += [*_intervals(symbols), *([earned] if earned is not None else [])]
    return Section("Failures", tuple(quantities), (_formulas_table(symbols, daly), _intervals_table(symbols)), _notes(symbols))


# --- counts and losses ------------------------------------------------------------------------------------------------


def _expected(s: FailureFacts) -> Quantity:
    low = _end(s.T0, "low") / _end(s.M, "high")
    high = _end(s.T0, "high") / _end(s.M, "low")
    value = expected_failures(s.T0.number(), s.M.number())
    return Quantity("expected_failures", value, "", "T0 / M", s.symbols("T0 M"), "first order: over useful time", low, high)


def _over_wall(s: FailureFacts, wall: Quantity) -> Quantity:
    """What an operator will count; the wall time and M go together, so their ends do."""
    value = failures_over_wall(wall.number(), s.M.number())
    low = None if wall.low is None else wall.low / _end(s.M, "high")
    high = None if wall.high is None else wall.high / _end(s.M, "low")
    source = "over the time that passes: replay and restarts are interrupted too"
    return Quantity("interruptions_over_wall_time", value, "", "T / M", {"T": wall, "M": s.M}, source, low, high)


def _lost_first_order(s: FailureFacts) -> Quantity:
    """What can be checked in one's head."""
    value = lost_seconds_first_order(s.T0.number(), s.interruptions())
    corners = [corner or 0.0 for corner in s.over_corners(lost_seconds_first_order)]
    formula, inputs = "T0 / M x (tau / 2 + R)", s.symbols("T0 M tau R")
    return Quantity("lost_to_failures_seconds", value, "seconds", formula, inputs, "first order", min(corners), max(corners))


def _wall(s: FailureFacts, name: str, rule: tuple[Wall, str, str], save: bool = True) -> Quantity:
    """Wall time by one formula; unknown where that formula says never."""
    compute, formula, source = rule
    at = s.interruptions()
    value = compute(s.T0.number(), at if save else Interruptions(at.between, at.restart, at.interval))
    if value is None:
        return unknown(name, "seconds", FASTER_THAN_RECOVERY)
    corners = [corner for corner in s.over_corners(compute, save=save) if corner is not None]
    high = max(corners) if len(corners) == 8 else None
    inputs = s.symbols("T0 M tau R c" if save else "T0 M tau R")
    return Quantity(name, value, "seconds", formula, inputs, source, min([*corners, value]), high)


FIRST_ORDER = (wall_seconds_first_order, "T0 + T0 / M x (tau / 2 + R)", "first order, saves left out")
SELF_CONSISTENT = (wall_seconds_self_consistent, "T0 / (1 - (tau / 2 + R) / M)", "self-consistent, saves left out")
WITH_SAVES = (wall_seconds_self_consistent, "T0 (1 + c / tau) / (1 - (tau / 2 + R) / M)", "self-consistent")
SAFE = (wall_seconds_safe_restarts, "(M + R) (e^((tau + c) / M) - 1) T0 / tau", "exact if no restart is struck")
DALY = (wall_seconds_daly, "M e^(R/M) (e^((tau+c)/M) - 1) T0 / tau", "Daly 2006, equation 13")


def _daly(s: FailureFacts) -> Quantity:
    """The plan's own answer: exact for failures at a constant rate; its range reaches to the self-consistent form."""
    exact = _wall(s, "wall_seconds_with_failures", DALY)
    other = wall_seconds_self_consistent(s.T0.number(), s.interruptions())
    if exact.value is None or exact.low is None or exact.high is None or other is None:
        return exact
    low, high = min(exact.low, other), max(exact.high, other)
    source = "Daly 2006; range: T0, M, tau, c, and the self-consistent formula"
    return Quantity(exact.name, exact.value, "seconds", exact.formula, exact.inputs, source, low, high)


def _effective_share(s: FailureFacts, wall: Quantity) -> Quantity:
    value = s.T0.number() / wall.number()
    inputs: dict[str, Input] = {"T0": s.T0, "T": wall}
    return Quantity("effective_training_share", value, "share", "T0 / T", inputs, "by Daly's wall time")


def _formulas_table(s: FailureFacts, daly: Quantity) -> Table:
    """Which number is which."""
    rows = [
        (_wall(s, "wall_seconds_first_order", FIRST_ORDER, save=False), "over useful time, saves left out: too low"),
        (_wall(s, "wall_seconds_self_consistent", SELF_CONSISTENT, save=False), "over wall time, at full price, saves left out"),
        (_wall(s, "wall_seconds_self_consistent_with_saves", WITH_SAVES), "over wall time, at full price each: a bit too high"),
        (_wall(s, "wall_seconds_safe_restarts", SAFE), "exact while restarts are never struck"),
        (daly, "exact for a constant rate, restarts are struck too"),
    ]
    titles = ("first order", "self-consistent", "self-consistent with saves", "exact, safe restarts", "exact, Daly")
    cells = [_formula_row(s, title, *row) for title, row in zip(titles, rows, strict=True)]
    columns = (Column("formula"), Column("wall time", "seconds"), Column("lost", "share"), Column("counts interruptions"))
    return Table("Wall time with failures, by formula", columns, tuple(cells))


def _formula_row(s: FailureFacts, title: str, wall: Quantity, counts: str) -> tuple[Cell, ...]:
    if wall.value is None:
        return (title, "never", None, counts)
    return (title, wall, 1 - s.T0.number() / wall.number(), counts)


# --- intervals --------------------------------------------------------------------------------------------------------


def _intervals(s: FailureFacts) -> list[Quantity]:
    """Young's, Daly's, and the save that would make the declared interval the best."""
    M, c = s.M, s.c
    low, high = (young_interval_seconds(_end(c, side), _end(M, side)) for side in ("low", "high"))
    inputs, value = s.symbols("c M"), young_interval_seconds(c.number(), M.number())
    young = Quantity("young_checkpoint_interval", value, "seconds", "sqrt(2 c M)", inputs, "Young 1974", low, high)
    fits = cost_for_which_young_says(s.tau.number(), M.number())
    source = "Young 1974, turned over: what a save would have to cost for the declared interval to be the best"
    implied = Quantity("save_seconds_that_fit_the_interval", fits, "seconds", "tau^2 / (2 M)", s.symbols("tau M"), source)
    return [young, interval_quantity(c, M), implied]


def _intervals_table(s: FailureFacts) -> Table:
    """How the declared cadence compares with the best ones."""
    c, M = s.c.number(), s.M.number()
    candidates = {
        "declared": s.tau.number(),
        "Young": young_interval_seconds(c, M),
        "Daly": daly_interval_seconds(c, M),
        "exact": exact_interval_seconds(c, M),
    }
    rows = tuple(_interval_row(s, name, tau) for name, tau in candidates.items() if tau > 0)
    columns = (
        Column("interval"),
        Column("every", "seconds"),
        Column("saves c / tau", "share"),
        Column("replay tau / 2 M", "share"),
        Column("wall time, self-consistent", "seconds"),
        Column("wall time, Daly", "seconds"),
    )
    return Table("Checkpoint intervals", columns, rows)


def _interval_row(s: FailureFacts, name: str, tau: float) -> tuple[Cell, ...]:
    saves, replay = overhead_shares(tau, s.c.number(), s.M.number())
    walls = [compute(s.T0.number(), s.interruptions(tau)) for compute in (wall_seconds_self_consistent, wall_seconds_daly)]
    return (name, tau, saves, replay, *walls)


# --- rate and recovery ------------------------------------------------------------------------------------------------


def earned_by_shrinking(s: FailureFacts) -> Quantity | None:
    """What going on with fewer earns during one repair: as the deployment states it, else without the broken domain where
    nobody stands by."""
    deployment = s.facts.deployment
    failures, lost = deployment.failures, max(deployment.domain, deployment.processes_per_node)
    if failures.repair is None:
        return None
    if failures.elastic is not None:
        return recovery_quantity(failures.repair, failures.elastic.reconfigure, shrunken_pace(deployment))
    if failures.spares or lost >= deployment.world:
        return None
    return recovery_quantity(failures.repair, s.R, 1 - lost / deployment.world)


def shrunken_pace(deployment: Deployment) -> float:
    """Of a job with one node missing: as stated, else the share of nodes that are left."""
    elastic = deployment.failures.elastic
    return elastic.pace if elastic is not None and elastic.pace is not None else 1 - 1 / deployment.nodes


def stated_for_simulation(deployment: Deployment) -> dict[str, bool]:
    """What only a simulation takes into account, and whether the deployment states it."""
    failures = deployment.failures
    return {
        "tiers of checkpoints": bool(deployment.checkpoints.tiers),
        "planned pauses": bool(failures.pauses),
        "shrinking": failures.elastic is not None,
    }


def _notes(s: FailureFacts) -> tuple[str, ...]:
    deployment = s.facts.deployment
    notes = []
    unseen = [name for name, stated in stated_for_simulation(deployment).items() if stated]
    if unseen:
        notes.append(f"The closed forms leave out what is stated of {', '.join(unseen)}: see the simulated run (--simulate).")
    if deployment.between_failures is None:
        notes.append("No failure rate is stated: failures.every or failures.per_device replaces the assumed one.")
    if deployment.failures.every is None and deployment.world <= SMALL_JOB_DEVICES:
        times = small_job_divergence().shown()
        notes.append(f"Jobs of 8 to 1,024 devices were interrupted {times} as often as their cluster's node rate says.")
    implied, cost = cost_for_which_young_says(s.tau.number(), s.M.number()), s.c.number()
    if implied > 4 * cost:
        notes.append(f"The declared interval would be the best one if a save cost {implied:.3g} s; it costs {cost:.3g} s.")
    return tuple(notes)

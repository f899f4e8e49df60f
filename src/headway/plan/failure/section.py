"""What failures will cost, by every formula side by side, and the simulated distribution when it is asked for.

    M   mean time between interruptions of the job    R   detection + restart     T0   useful seconds
    tau time between checkpoints                      c   what one save costs

A closed form is one number under one assumption; its range is the range of T0, M, c and tau. The simulation knows classes of
faults, nodes in reserve and what checkpoints are kept; its range is the spread of histories (p5 to p95) at the middle inputs.

    training_seconds -> + saves, failures: wall_seconds_daly and the other formulas, side by side
                     -> + evaluations, digests: wall_seconds, which every other section takes
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

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
from headway.plan.compute_section import beside_training, predicted_seconds
from headway.plan.facts import PlanFacts
from headway.plan.plan import Cell, Column, Section, Table
from headway.plan.ranges import rising

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

    @cached_property
    def young(self) -> Quantity:
        """To first order: it parts from Daly's where a save is not cheap against the time between failures."""
        name, inputs = "young_checkpoint_interval", self.symbols("c M")
        value, low, high = rising(young_interval_seconds, self.c, self.M)
        return Quantity(name, value, "seconds", "sqrt(2 c M)", inputs, "Young 1974", low, high)

    @cached_property
    def best(self) -> Quantity:
        return interval_quantity(self.c, self.M)

    @cached_property
    def daly(self) -> Quantity:
        return _daly(self)

    @cached_property
    def wall(self) -> Quantity:
        """How long the devices are held; where nobody knows how often they fail, that is the predicted work by its own name."""
        return _wall_of_the_run(self) if self.applies and self.known else predicted_seconds(self.facts)

    def at_ends(self, compute: Wall, save: bool = True) -> tuple[float | None, float | None]:
        """``compute`` where everything is kind, and where nothing is.

        A step's time stands in T0 and in tau, so these go together; fast steps, cheap saves and rare failures are the low end.
        """
        low, high = (
            compute(self.T0.at(side), Interruptions(M, self.R.number(), self.tau.at(side), self.c.at(side) if save else 0.0))
            for side, M in ((LOW, self.M.at("high")), (HIGH, self.M.at("low")))
        )
        return low, high


LOW: Literal["low"] = "low"
HIGH: Literal["high"] = "high"


def checkpoint_interval(facts: PlanFacts) -> Quantity:
    """Seconds of training between two checkpoints, by time or by steps, as the deployment declares it."""
    policy, name = facts.deployment.checkpoints, "checkpoint_interval"
    if policy.every is None:
        tokens = policy.every_steps * facts.tokens.number() / facts.steps.number()
        return facts.spent(name, tokens, "steps x step time")
    step, every, source = facts.main_step, policy.every, "the deployment: checkpoints.every"
    if step is None or every >= step.at("high"):
        return Quantity(name, every, "seconds", "stated", {}, source)
    low, value, high = (max(every, each) for each in (step.at("low"), step.number(), step.at("high")))
    formula = "max(every, step_seconds), none inside a step"
    inputs: dict[str, Input] = {"every": every, "step_seconds": step}
    return Quantity(name, value, "seconds", formula, inputs, f"{source} is shorter than a step", low, high)


def failures_section(facts: PlanFacts) -> Section:
    """Unknown where no rate is stated and none can be assumed."""
    symbols = FailureFacts(facts)
    if not symbols.applies:
        return Section("Failures", tuple(_unstated()))
    if not symbols.known:
        return Section("Failures", (symbols.M, symbols.R, unknown("expected_failures", "times", symbols.T0.formula)))
    quantities = [symbols.M, symbols.R, _expected(symbols), _lost_first_order(symbols), symbols.daly]
    if symbols.wall.value is not None:
        quantities += [_over_wall(symbols), _effective_share(symbols)]
    else:
        inputs = symbols.symbols("M R tau c")
        quantities.append(Quantity("end_with_failures", "never", "", FASTER_THAN_RECOVERY, inputs, "by Daly's wall time"))
    earned = earned_by_shrinking(symbols)
    quantities += [symbols.young, symbols.best, _fitting_save(symbols), *([earned] if earned is not None else [])]
    return Section("Failures", tuple(quantities), (_formulas_table(symbols), _intervals_table(symbols)), _notes(symbols))


def _unstated() -> Iterator[Quantity]:
    missing = "needs failures.every or failures.per_device: nobody publishes how often such a device is interrupted"
    units = {"mean_time_between_interruptions": "seconds", "expected_failures": "", "effective_training_share": "share"}
    return (unknown(name, unit, missing) for name, unit in units.items())


# --- counts and losses ------------------------------------------------------------------------------------------------


def _expected(s: FailureFacts) -> Quantity:
    low, high = s.T0.at("low") / s.M.at("high"), s.T0.at("high") / s.M.at("low")
    value = expected_failures(s.T0.number(), s.M.number())
    return Quantity("expected_failures", value, "", "T0 / M", s.symbols("T0 M"), "first order: over useful time", low, high)


def _over_wall(s: FailureFacts) -> Quantity:
    """What an operator will count; the wall time and M go together, so their ends do."""
    wall = s.wall
    value = failures_over_wall(wall.number(), s.M.number())
    low = None if wall.low is None else wall.low / s.M.at("high")
    high = None if wall.high is None else wall.high / s.M.at("low")
    source = "over the time that passes: replay and restarts are interrupted too"
    return Quantity("interruptions_over_wall_time", value, "", "T / M", {"T": wall, "M": s.M}, source, low, high)


def _lost_first_order(s: FailureFacts) -> Quantity:
    """What can be checked in one's head."""
    value = lost_seconds_first_order(s.T0.number(), s.interruptions())
    formula, inputs = "T0 / M x (tau / 2 + R)", s.symbols("T0 M tau R")
    return Quantity(
        "lost_to_failures_seconds", value, "seconds", formula, inputs, "first order", *s.at_ends(lost_seconds_first_order)
    )


def _wall(s: FailureFacts, name: str, rule: tuple[Wall, str, str], save: bool = True) -> Quantity:
    """Wall time by one formula; unknown where that formula says never."""
    compute, formula, source = rule
    at = s.interruptions()
    value = compute(s.T0.number(), at if save else Interruptions(at.between, at.restart, at.interval))
    if value is None:
        return unknown(name, "seconds", FASTER_THAN_RECOVERY)
    inputs = s.symbols("T0 M tau R c" if save else "T0 M tau R")
    return Quantity(name, value, "seconds", formula, inputs, source, *s.at_ends(compute, save=save))


FIRST_ORDER = (wall_seconds_first_order, "T0 + T0 / M x (tau / 2 + R)", "first order, saves left out")
SELF_CONSISTENT = (wall_seconds_self_consistent, "T0 / (1 - (tau / 2 + R) / M)", "self-consistent, saves left out")
WITH_SAVES = (wall_seconds_self_consistent, "T0 (1 + c / tau) / (1 - (tau / 2 + R) / M)", "self-consistent")
SAFE = (wall_seconds_safe_restarts, "(M + R) (e^((tau + c) / M) - 1) T0 / tau", "exact if no restart is struck")
DALY = (wall_seconds_daly, "M e^(R/M) (e^((tau+c)/M) - 1) T0 / tau", "Daly 2006, equation 13")


def _daly(s: FailureFacts) -> Quantity:
    """What the plan's own answer stands on: exact for a constant rate; its range reaches to the self-consistent form."""
    exact = _wall(s, "wall_seconds_daly", DALY)
    other = wall_seconds_self_consistent(s.T0.number(), s.interruptions())
    if exact.value is None or exact.low is None or exact.high is None or other is None:
        return exact
    low, high = min(exact.low, other), max(exact.high, other)
    source = "Daly 2006; range: T0, M, tau, c, and the self-consistent formula"
    return replace(exact, source=source, low=low, high=high)


def _wall_of_the_run(s: FailureFacts) -> Quantity:
    """Evaluations and digests are interrupted as often as training, and what was lost of them is done again."""
    name, beside = "wall_seconds", beside_training(s.facts)
    if s.daly.value is None:
        return unknown(name, "seconds", s.daly.formula)
    low, value, high = (
        None if daly is None else daly * (1 + more / useful)
        for daly, more, useful in (
            (s.daly.low, beside.at("low"), s.T0.at("low")),
            (s.daly.number(), beside.number(), s.T0.number()),
            (s.daly.high, beside.at("high"), s.T0.at("high")),
        )
    )
    inputs: dict[str, Input] = {"T": s.daly, "T0": s.T0, "E": beside}
    source = "training, saves, evaluations, digests, failures; no start-up, no queue"
    return Quantity(name, value, "seconds", "T (T0 + E) / T0", inputs, source, low, high)


def _effective_share(s: FailureFacts) -> Quantity:
    """Where the run takes longest, the smallest part of it is training."""
    value = s.T0.number() / s.wall.number()
    ends = [value, *(0.0 if bound is None else s.T0.at(side) / bound for side, bound in ((LOW, s.wall.low), (HIGH, s.wall.high)))]
    inputs: dict[str, Input] = {"T0": s.T0, "T": s.wall}
    return Quantity("effective_training_share", value, "share", "T0 / T", inputs, "by Daly's wall time", min(ends), max(ends))


def _formulas_table(s: FailureFacts) -> Table:
    """Which number is which."""
    rows = [
        (_wall(s, "wall_seconds_first_order", FIRST_ORDER, save=False), "over useful time, saves left out: too low"),
        (_wall(s, "wall_seconds_self_consistent", SELF_CONSISTENT, save=False), "over wall time, at full price, saves left out"),
        (_wall(s, "wall_seconds_self_consistent_with_saves", WITH_SAVES), "over wall time, at full price each: a bit too high"),
        (_wall(s, "wall_seconds_safe_restarts", SAFE), "exact while restarts are never struck"),
        (s.daly, "exact for a constant rate, restarts are struck too"),
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


def _fitting_save(s: FailureFacts) -> Quantity:
    """The save that would make the declared interval the best."""
    tau, M = s.tau, s.M
    low, value, high = (
        cost_for_which_young_says(*pair)
        for pair in ((tau.at("low"), M.at("high")), (tau.number(), M.number()), (tau.at("high"), M.at("low")))
    )
    source = "Young 1974, turned over: what a save would have to cost for the declared interval to be the best"
    exact = not (tau.is_estimate or M.is_estimate)
    ends = (None, None) if exact else (low, high)
    return Quantity("save_seconds_that_fit_the_interval", value, "seconds", "tau^2 / (2 M)", s.symbols("tau M"), source, *ends)


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

"""What tiers of checkpoints and shrinking did in a simulated run: restores by tier, and going on against waiting.

restores    an interruption -> the newest checkpoint that outlived it -> the tier it lay in
shrinking   the same run twice, once it waits for repairs; beside it r max(0, R - d) for each time that it shrank
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.formulas.quantity import Quantity, unknown
from headway.plan.failure.faults import Tier
from headway.plan.failure.outcome import Outcome
from headway.plan.failure.section import FailureFacts, earned_by_shrinking
from headway.plan.plan import Cell, Column, Table
from headway.plan.ranges import product

STANDARD_ERRORS = 2.0
"""Width of a range that only says what other seeds would give."""


def restores_table(outcome: Outcome) -> Table:
    """How many interruptions each tier answered, per run."""
    means = [float(counts.mean()) for counts in outcome.restores]
    total = sum(means) or 1.0
    rows = [_tier_row(tier, mean, mean / total) for tier, mean in zip(outcome.run.tiers, means[:-1], strict=True)]
    if means[-1]:
        rows.append(("from the beginning", None, None, means[-1], means[-1] / total))
    columns = (
        Column("restored from"),
        Column("written every", "seconds"),
        Column("read in", "seconds"),
        Column("restores per run, mean"),
        Column("share", "share"),
    )
    return Table("Restores by tier of checkpoints", columns, tuple(rows))


def _tier_row(tier: Tier, mean: float, share: float) -> tuple[Cell, ...]:
    return (tier.name, tier.every_seconds, tier.restore_seconds, mean, share)


# --- shrinking --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shrinking:
    """The run as stated, and as it would be if it waited."""

    shrinks: Outcome
    waits: Outcome
    symbols: FailureFacts


def shrinking_quantities(pair: Shrinking) -> tuple[Quantity, ...]:
    """What it gained as simulated, how often it was done, and what the formula gives for that many repairs."""
    counts = pair.shrinks.shrinks
    value, error = float(counts.mean()), STANDARD_ERRORS * float(counts.std()) / math.sqrt(len(counts))
    source = "simulation, two standard errors"
    times = Quantity(
        "simulated_times_shrunk", value, "", "mean over simulated runs", {}, source, max(0.0, value - error), value + error
    )
    return (times, _gain(pair), *_by_formula(pair, times))


def _gain(pair: Shrinking) -> Quantity:
    """Mean against mean; the range is what other seeds would give."""
    name, unit = "simulated_gain_of_shrinking", "seconds"
    shrinks, waits = pair.shrinks, pair.waits
    if shrinks.unfinished_share or waits.unfinished_share:
        return unknown(name, unit, "not all of the simulated runs finish")
    value = waits.finish.mean - shrinks.finish.mean
    error = STANDARD_ERRORS * math.hypot(shrinks.standard_error_seconds, waits.standard_error_seconds)
    inputs = {"W": waits.finish.mean, "S": shrinks.finish.mean}
    formula = "W - S: mean wall time of runs that wait for repairs less that of runs that go on with fewer nodes"
    return Quantity(name, value, unit, formula, inputs, "simulation, two standard errors", value - error, value + error)


def _by_formula(pair: Shrinking, times: Quantity) -> tuple[Quantity, ...]:
    earned = earned_by_shrinking(pair.symbols)
    if earned is None:
        return ()
    formula, factors = "n x e: each repair earns r max(0, R - d)", {"n": times, "e": earned}
    source = "docs/sources.md: the run-design worksheet, elasticity; one node missing at a time, growing back not charged"
    return (earned, product("gain_of_shrinking_by_formula", "seconds", formula, factors, source=source))


SPENT = ("waiting", "reconfiguration", "degraded", "restart")


def shrinking_table(pair: Shrinking) -> Table:
    """Means of both, and what shrinking changes about them."""
    jobs = {"waits for repairs": pair.waits, "goes on with fewer": pair.shrinks}
    columns = (Column("the job"), Column("finish", "seconds"), *(Column(name, "seconds") for name in SPENT))
    rows = tuple((title, _finish(outcome), *(outcome.time(name).mean for name in SPENT)) for title, outcome in jobs.items())
    return Table("Shrinking against waiting, means", columns, rows)


def _finish(outcome: Outcome) -> Cell:
    return "never" if outcome.unfinished_share else outcome.finish.mean

"""The simulated distribution of a plan: finish time, goodput, replay, and where the time goes. For ``--simulate``.

What the deployment says becomes a ``SimulatedRun``; what it leaves open is assumed and said so: shares of fault classes as
in the published log, and that a node is replaced within the restart where no repair time is stated.

    checkpoints.tiers      Tier, fastest first, then the storage: every x checkpoints kept for good, newest
    failures.pauses        Pauses
    failures.elastic       Nodes.shrunken_pace, reconfigure_seconds; simulated once more without it, to see what it gains
"""

from __future__ import annotations

from dataclasses import replace

from headway.base.units import format_seconds
from headway.formulas.quantity import Input, Quantity
from headway.plan.facts import PlanFacts
from headway.plan.failure.faults import (
    SILENT_FOUND_SECONDS,
    SWITCH_NODES,
    FaultClass,
    Kind,
    Nodes,
    Pauses,
    SimulatedRun,
    Tier,
    contradictions,
    published_faults,
    shares_source,
)
from headway.plan.failure.outcome import CATEGORIES, Distribution, Outcome
from headway.plan.failure.section import FailureFacts, shrunken_pace
from headway.plan.failure.simulate import is_hopeless, simulate
from headway.plan.failure.survival import Shrinking, restores_table, shrinking_quantities, shrinking_table
from headway.plan.plan import Cell, Column, Section, Table
from headway.recipe.deployment import ALL_FAULTS

ASSUMED_REPAIR_SECONDS = 24 * 3600.0
"""Where stand-bys are stated and no repair time: a day until a node is swapped and back."""


def simulation_section(facts: PlanFacts, runs: int = 1000, seed: int = 0) -> Section | None:
    """None where no failure rate is known or no step time; otherwise about a second of work."""
    symbols = FailureFacts(facts)
    if not symbols.applies or not symbols.known:
        return None
    run = simulated_run(symbols)
    if is_hopeless(run):
        return _never(symbols, run)
    outcome = simulate(run, runs=runs, seed=seed)
    quantities = _quantities(outcome, seed)
    tables: tuple[Table, ...] = (_distributions(outcome), _times(outcome), restores_table(outcome))
    if symbols.facts.deployment.failures.elastic is not None:
        pair = Shrinking(outcome, simulate(waiting(outcome.run), runs=runs, seed=seed + 1), symbols)
        quantities, tables = (*quantities, *shrinking_quantities(pair)), (*tables, shrinking_table(pair))
    few = f"{outcome.runs:,} runs instead of {runs:,}: so many faults strike each that they differ little."
    notes = (*([few] if outcome.runs < runs else []), *_notes(symbols, outcome))
    return Section("Simulated run", quantities, tables, notes)


def _never(symbols: FailureFacts, run: SimulatedRun) -> Section:
    """What the closed form says at once. Nothing is simulated."""
    formula = "1: by Daly's formula longer than give_up x T0, even if every fault left the newest checkpoint"
    inputs: dict[str, Input] = {**symbols.symbols("T0 M tau R c"), "give_up": run.give_up_after}
    share = Quantity("simulated_unfinished_share", 1.0, "share", formula, inputs, "Daly 2006, equation 13")
    return Section(
        "Simulated run", (share,), (), ("Practically never done: faults come faster than work is saved. Not simulated.",)
    )


def simulated_run(symbols: FailureFacts) -> SimulatedRun:
    """What a plan's deployment says about failures, as a run to simulate."""
    failures = symbols.facts.deployment.failures
    return SimulatedRun(
        useful_seconds=symbols.T0.number(),
        between_seconds=symbols.M.number(),
        tiers=_tiers(symbols),
        restart_seconds=failures.restart,
        faults=_faults(symbols),
        nodes=_nodes(symbols),
        pauses=tuple(Pauses(what=pause.what, every_seconds=pause.every, seconds=pause.length) for pause in failures.pauses),
        tokens_per_second=symbols.facts.tokens_per_second.number(),
    )


def waiting(run: SimulatedRun) -> SimulatedRun:
    """The same run, but it waits for repairs."""
    return replace(run, nodes=replace(run.nodes, shrunken_pace=None, reconfigure_seconds=0.0))


def _tiers(symbols: FailureFacts) -> tuple[Tier, ...]:
    """Those in front of the storage, and the storage: newest checkpoints, and those kept for good, which are the same writes."""
    policy, classes = symbols.facts.deployment.checkpoints, [fault.name for fault in _faults(symbols)]
    fast = tuple(
        Tier(
            name=tier.name,
            every_seconds=tier.every,
            save_seconds=tier.cost,
            restore_seconds=tier.restore,
            survives={name: float(name in tier.outlives) for name in classes},
            keep=tier.keep,
        )
        for tier in policy.tiers
    )
    return (*fast, *_storage(symbols))


def _storage(symbols: FailureFacts) -> tuple[Tier, ...]:
    policy, restore, tau = symbols.facts.deployment.checkpoints, storage_restore_seconds(symbols), symbols.tau.number()
    newest = Tier(
        name="storage",
        every_seconds=tau,
        save_seconds=symbols.c.number(),
        restore_seconds=restore,
        keep=policy.keep_last,
    )
    if not policy.permanent_every:
        return (newest,)
    kept = Tier(name="storage, kept for good", every_seconds=tau * policy.permanent_every, restore_seconds=restore)
    return (kept, newest)


def storage_restore_seconds(symbols: FailureFacts) -> float:
    """On top of a restart, where a read speed is stated, or other places that are read faster; else part of the restart."""
    deployment = symbols.facts.deployment
    storage = deployment.storage
    speed = storage.read_speed or (storage.write_speed if deployment.checkpoints.tiers else None)
    return symbols.facts.checkpoint_size.number() / speed if speed else 0.0


def _faults(symbols: FailureFacts) -> tuple[FaultClass, ...]:
    """Published classes, and the stated share that takes a whole domain."""
    deployment = symbols.facts.deployment
    failures = deployment.failures
    classes = published_faults(failures.detection)
    if not silent_reach_is_kept(symbols):
        classes = _rescaled(tuple(fault for fault in classes if fault.kind is not Kind.SILENT), 1.0)
    if failures.correlated:
        nodes = -(-deployment.domain // deployment.processes_per_node)
        domain = FaultClass(name="domain", share=failures.correlated, nodes=nodes, detection_seconds=failures.detection)
        classes = (*_rescaled(classes, 1 - failures.correlated), domain)
    if failures.repair is None and not failures.spares:
        classes = tuple(replace(fault, nodes=0) for fault in classes)
    return classes


def _rescaled(classes: tuple[FaultClass, ...], total: float) -> tuple[FaultClass, ...]:
    present = sum(fault.share for fault in classes)
    return tuple(replace(fault, share=fault.share / present * total) for fault in classes)


def silent_reach_is_kept(symbols: FailureFacts) -> bool:
    """Whether a checkpoint from before a silent fault is still there when it is found."""
    policy = symbols.facts.deployment.checkpoints
    reaches = [(policy.keep_last - 1) * symbols.tau.number()]
    reaches += [(tier.keep - 1) * tier.every for tier in policy.tiers if "silent" in tier.outlives]
    return bool(policy.permanent_every) or max(reaches) > SILENT_FOUND_SECONDS


def _nodes(symbols: FailureFacts) -> Nodes:
    deployment = symbols.facts.deployment
    repair, elastic = deployment.failures.repair, deployment.failures.elastic
    standby = deployment.failures.spares // deployment.processes_per_node
    waits = Nodes(standby=standby, repair_seconds=ASSUMED_REPAIR_SECONDS if repair is None else repair)
    if elastic is None:
        return waits
    return replace(waits, shrunken_pace=shrunken_pace(deployment), reconfigure_seconds=elastic.reconfigure)


# --- what is shown ----------------------------------------------------------------------------------------------------


def _quantities(outcome: Outcome, seed: int) -> tuple[Quantity, ...]:
    if outcome.unfinished_share >= 0.05:
        share = Quantity("simulated_unfinished_share", outcome.unfinished_share, "share", "runs given up / runs", {}, "")
        return (share,)
    inputs = {"runs": outcome.runs, "seed": seed}
    formula = "median over simulated runs; range: 5 to 95 % of them"
    figures = {
        ("simulated_finish_seconds", "seconds"): outcome.finish,
        ("simulated_goodput", "share"): outcome.goodput,
        ("simulated_lost_tokens", "tokens"): outcome.lost_tokens,
        ("simulated_interruptions", ""): outcome.interruptions,
    }
    return tuple(Quantity(name, d.p50, unit, formula, inputs, "simulation", d.p5, d.p95) for (name, unit), d in figures.items())


def _distributions(outcome: Outcome) -> Table:
    columns = (Column("figure"), Column("5 %"), Column("median"), Column("95 %"), Column("mean"))
    day = 86_400.0
    rows = (
        _row("finish (days)", outcome.finish, 1 / day),
        _row("goodput (%)", outcome.goodput, 100),
        _row("replayed tokens (10^9)", outcome.lost_tokens, 1e-9),
        _row("interruptions", outcome.interruptions, 1),
    )
    return Table(f"Distribution over {outcome.runs:,} simulated runs", columns, rows)


def _row(name: str, of: Distribution, scale: float) -> tuple[Cell, ...]:
    values = [value * scale for value in (of.p5, of.p50, of.p95, of.mean)]
    return (name, *(f"{value:,.4g}" if value < 1e300 else "never" for value in values))


def _times(outcome: Outcome) -> Table:
    """Mean time by category; they sum to the mean wall time."""
    wall = float(outcome.wall_seconds.mean())
    means = {name: outcome.time(name).mean for name in CATEGORIES}
    rows = tuple((name, seconds, seconds / wall) for name, seconds in means.items() if seconds)
    return Table("Time by category, mean", (Column("category"), Column("time", "seconds"), Column("share", "share")), rows)


def _notes(symbols: FailureFacts, outcome: Outcome) -> tuple[str, ...]:
    failures = symbols.facts.deployment.failures
    classes = ", ".join(f"{fault.name} {100 * fault.share:.3g} %" for fault in outcome.run.faults)
    device = symbols.facts.deployment
    shares = shares_source(device.chip.name if device.chip else device.accelerator.kind)
    taken = f"a switch takes {SWITCH_NODES} nodes, assumed"
    notes = [f"Classes of faults: {classes} (shares of {shares}; {taken}).", *contradictions()]
    if failures.repair is None and not failures.spares:
        notes.append("No repair time and no stand-bys are stated: a lost node is replaced within the restart.")
    elif failures.repair is None:
        notes.append("No repair time is stated: a day is assumed.")
    notes += _stated_notes(symbols, outcome.run)
    hours = SILENT_FOUND_SECONDS / 3600
    if silent_reach_is_kept(symbols):
        notes.append(
            f"Silent corruption is found after {hours:.0f} h (assumed) and all since then is replayed; no closed form has it."
        )
    else:
        notes.append(
            f"Silent corruption is left out: found after {hours:.0f} h (assumed), it would lie in every checkpoint that is kept, "
            "and the run would start over. checkpoints.permanent_every keeps some for good."
        )
    if outcome.unfinished_share:
        notes.append(f"{100 * outcome.unfinished_share:.3g} % of the runs took more than ten times the useful time.")
    return tuple(notes)


def _stated_notes(symbols: FailureFacts, run: SimulatedRun) -> list[str]:
    """Of what the deployment states about surviving."""
    tau, notes = symbols.tau.number(), []
    policy = symbols.facts.deployment.checkpoints
    if policy.tiers:
        restore = format_seconds(run.tiers[-1].restore_seconds)
        notes.append(f"Reading a checkpoint comes on top of failures.restart: {restore} from the storage.")
    for tier in policy.tiers:
        if tier.every > tau or (tier.every == tau and tier.outlives == ALL_FAULTS):
            seldom = f"{tier.name} is written every {format_seconds(tier.every)}, the storage every {format_seconds(tau)}"
            notes.append(f"{seldom} of training and survives everything: {tier.name} costs its writes and adds nothing.")
    for pause in run.pauses:
        notes.append(f"Planned: {pause.what}, {format_seconds(pause.seconds)} every {format_seconds(pause.every_seconds)}.")
    return notes

"""What can break in a simulated run: classes of faults, tiers of checkpoints, nodes in reserve, planned pauses.

class      stops the job     takes nodes    what it leaves behind
STOP       at once           0, 1 or many   checkpoints on what was lost are gone, by each tier's chance of survival
SILENT     when found        those blamed   everything after it is wrong: the restore goes behind it
SLOW       when found        those blamed   pace until then; its eviction saves first and loses no work
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headway.base.errors import ConfigError


class Kind(StrEnum):
    """What a fault does to the job at the moment it strikes."""

    STOP = "stop"
    SILENT = "silent"
    SLOW = "slow"


class Restarts(StrEnum):
    """Whether a fault can strike while the job restarts: Daly's formula assumes so, the gentler exact form does not."""

    STRUCK = "struck"
    SAFE = "safe"


@dataclass(frozen=True, kw_only=True)
class FaultClass:
    """One kind of interruption. ``share`` of all faults; shares sum to one over the classes of a run."""

    name: str
    share: float
    kind: Kind = Kind.STOP
    nodes: int = 0  # taken out of service; more than one is a correlated burst: a switch, a power domain
    detection_seconds: float = 0.0  # from the strike until the job is known to be stopped, wrong or slow
    pace: float = 1.0  # of the whole job while a SLOW fault is not found


@dataclass(frozen=True, kw_only=True)
class Tier:
    """One place where checkpoints go. Cadence counts useful seconds, as steps do; ``save_seconds`` block training."""

    name: str
    every_seconds: float
    save_seconds: float = 0.0
    restore_seconds: float = 0.0
    survives: Mapping[str, float] = field(default_factory=dict)  # class -> chance that the tier outlives it; otherwise 1
    keep: int | None = None  # newest checkpoints that stay; None: all


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Nodes in reserve and what happens when there are none."""

    standby: int = 0
    repair_seconds: float = 0.0  # until a broken node is in reserve again
    shrunken_pace: float | None = None  # of the job with one node missing, two cost twice that; None: the job waits
    reconfigure_seconds: float = 0.0  # to shrink or to grow again, in place of a restart


@dataclass(frozen=True, kw_only=True)
class Pauses:
    """Maintenance: every so many seconds of wall time the job saves, stands still, and restarts."""

    what: str = "maintenance"
    every_seconds: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class SimulatedRun:
    """A run to simulate. ``between_seconds``: mean time between faults of the whole job; inf: nothing ever breaks."""

    useful_seconds: float
    between_seconds: float
    tiers: tuple[Tier, ...]  # fastest first; the last one also holds the end of the run and planned saves
    restart_seconds: float = 0.0
    faults: tuple[FaultClass, ...] = (FaultClass(name="any", share=1.0),)
    nodes: Nodes = Nodes()
    pauses: tuple[Pauses, ...] = ()  # those that fall together are one, as long as the longest
    restarts: Restarts = Restarts.STRUCK
    tokens_per_second: float = 0.0  # at full pace, to express replay in tokens
    give_up_after: float = 10.0  # times the useful seconds: a run that takes longer counts as never finished

    def __post_init__(self) -> None:
        check(self)


MOST_WRITES = 5_000_000
MOST_FAULTS = 50_000.0
MOST_PAUSES = 50_000.0
SHARE_TOLERANCE = 1e-9


def check(run: SimulatedRun) -> None:
    """ConfigError for what cannot be simulated."""
    _check_durations(run)
    if not run.tiers:
        raise ConfigError("no tier of checkpoints", "a run saves somewhere", "give at least one tier")
    _check_faults(run)
    for tier in run.tiers:
        _check_tier(tier, run)
    pace = run.nodes.shrunken_pace
    if run.nodes.standby < 0 or (pace is not None and not 0 < pace < 1):
        seen = f"{run.nodes.standby} stand-by nodes, pace {pace}"
        raise ConfigError(seen, "stand-bys are counted from 0; a shrunken run keeps a share of its pace between 0 and 1", "")
    _check_pauses(run)


def _check_durations(run: SimulatedRun) -> None:
    if not (run.useful_seconds > 0 and run.between_seconds > 0 and run.give_up_after > 1):
        seen = f"{run.useful_seconds:g} useful s, a fault every {run.between_seconds:g} s, given up after {run.give_up_after:g} x"
        raise ConfigError(seen, "both times are positive, and a run gets more than its useful time", "")
    durations = [run.restart_seconds, run.nodes.repair_seconds, run.nodes.reconfigure_seconds]
    durations += [fault.detection_seconds for fault in run.faults]
    durations += [seconds for tier in run.tiers for seconds in (tier.save_seconds, tier.restore_seconds)]
    if min(durations) < 0:
        raise ConfigError(f"a duration of {min(durations):g} s", "durations are not negative", "")
    if run.useful_seconds / run.between_seconds > MOST_FAULTS:
        seen = f"a fault every {run.between_seconds:g} s in {run.useful_seconds:g} s"
        raise ConfigError(seen, f"at most {MOST_FAULTS:,.0f} faults are simulated per run", "use the closed forms")


def _check_pauses(run: SimulatedRun) -> None:
    for pause in run.pauses:
        seen = f"{pause.what}: a pause of {pause.seconds:g} s every {pause.every_seconds:g} s"
        if not 0 < pause.seconds < pause.every_seconds:
            raise ConfigError(seen, "a pause is shorter than the time from one to the next", "")
        if run.useful_seconds / pause.every_seconds > MOST_PAUSES:
            raise ConfigError(seen, f"at most {MOST_PAUSES:,.0f} pauses are simulated per run", "pause less often")
    share = sum(pause.seconds / pause.every_seconds for pause in run.pauses)
    if share >= 1:
        raise ConfigError(f"pauses take {100 * share:.3g} % of the time", "together they leave time to train", "pause less often")


def _check_faults(run: SimulatedRun) -> None:
    total = sum(fault.share for fault in run.faults)
    if abs(total - 1) > SHARE_TOLERANCE or min(fault.share for fault in run.faults) < 0:
        shares = ", ".join(f"{fault.name} {fault.share:g}" for fault in run.faults)
        raise ConfigError(f"shares of faults: {shares}", f"shares sum to 1, these to {total:g}", "give every class its share")
    for fault in run.faults:
        if not 0 < fault.pace <= 1 or fault.nodes < 0:
            seen = f"{fault.name}: pace {fault.pace:g}, {fault.nodes} nodes"
            raise ConfigError(seen, "pace lies above 0 and at most at 1, nodes are counted from 0", "")


def _check_tier(tier: Tier, run: SimulatedRun) -> None:
    if tier.every_seconds <= 0 or (tier.keep is not None and tier.keep < 1):
        seen = f"{tier.name}: every {tier.every_seconds:g} s, keeps {tier.keep}"
        raise ConfigError(seen, "an interval is positive, and at least one checkpoint is kept", "")
    if run.useful_seconds / tier.every_seconds > MOST_WRITES:
        seen = f"{tier.name}: {run.useful_seconds / tier.every_seconds:,.0f} checkpoints"
        raise ConfigError(seen, f"at most {MOST_WRITES:,} are simulated", "save less often")
    known = {fault.name for fault in run.faults}
    for name, chance in tier.survives.items():
        if name not in known or not 0 <= chance <= 1:
            seen = f"{tier.name} survives {name} with {chance:g}"
            raise ConfigError(seen, "names a class of faults and a chance between 0 and 1", f"known: {', '.join(sorted(known))}")


# --- what published runs met ------------------------------------------------------------------------------------------

PUBLISHED_SOURCE = "arXiv 2407.21783 table 5: Llama 3 405B, 54 days on 16,384 H100"
PUBLISHED_COUNTS: Mapping[str, Mapping[str, int]] = {
    "process": {"Software Bug": 54, "NCCL Watchdog Timeouts": 7, "Dependency": 2},
    "node": {
        "Faulty GPU": 148,
        "GPU HBM3 Memory": 72,
        "Host Maintenance": 32,
        "GPU SRAM": 19,
        "GPU System Processor": 17,
        "NIC": 7,
        "GPU Thermal Interface+Sensor": 6,
        "SSD": 3,
        "Power Supply": 3,
        "Server Chassis": 2,
        "IO Expansion Board": 2,
        "CPU": 2,
        "System Memory": 2,
    },
    "network": {"Network Switch/Cable": 35},
    "silent": {"Silent Data Corruption": 6},
}
PRINTED_SHARE_OF_FAULTY_GPUS = 0.301
"""As printed beside 148 of 419, which is 35.3 %: see ``contradictions``."""
PUBLISHED_CHIP = "H100-SXM"
SWITCH_NODES = 2
"""Assumed: a rack switch of that cluster joins two nodes of eight devices."""
SILENT_FOUND_SECONDS = 4 * 3600.0
"""Assumed: wrong arithmetic shows in a loss or a check some hours later. Nobody publishes it."""


def published_faults(detection_seconds: float = 0.0, switch_nodes: int = SWITCH_NODES) -> tuple[FaultClass, ...]:
    """Classes with the shares of the published log: process, node, network, silent."""
    counts = {name: sum(causes.values()) for name, causes in PUBLISHED_COUNTS.items()}
    total = sum(counts.values())
    nodes = {"process": 0, "node": 1, "network": switch_nodes, "silent": 1}
    made = []
    for name, count in counts.items():
        silent = name == "silent"
        found = SILENT_FOUND_SECONDS if silent else detection_seconds
        kind = Kind.SILENT if silent else Kind.STOP
        made.append(FaultClass(name=name, share=count / total, kind=kind, nodes=nodes[name], detection_seconds=found))
    return tuple(made)


def shares_source(chip: str) -> str:
    """Where the shares are from; of another chip, or none of the table, they are assumed."""
    return PUBLISHED_SOURCE if chip == PUBLISHED_CHIP else f"{PUBLISHED_SOURCE}; assumed to hold for {chip}"


def contradictions() -> tuple[str, ...]:
    """What the published log says twice and differently."""
    total = sum(count for causes in PUBLISHED_COUNTS.values() for count in causes.values())
    count = PUBLISHED_COUNTS["node"]["Faulty GPU"]
    printed = f"{100 * PRINTED_SHARE_OF_FAULTY_GPUS:.1f} %"
    return (f"{PUBLISHED_SOURCE}: {count} of {total} is {100 * count / total:.1f} %, printed as {printed}; counts are used",)

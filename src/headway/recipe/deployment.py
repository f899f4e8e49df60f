"""The deployment: everything that does not change the mathematics of a run. The same recipe on another one is the same run.

Every field has a default; together they mean one process on this machine. ``layouts`` gives the mesh per training stage,
"default" for the stages that are not named.
"""

from __future__ import annotations

import math
import os
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from headway.base import units
from headway.base.urls import secret_in
from headway.recipe.chips import Chip, known_chip
from headway.recipe.fields import (
    AS_RESOLVED,
    Bytes,
    BytesPerSecond,
    FlopsPerSecond,
    HostName,
    Listed,
    Name,
    Seconds,
    Section,
    Share,
    Tokens,
    Version,
    Whole,
    WholeOrZero,
    one_of,
)
from headway.recipe.offload import Offload
from headway.recipe.schema import said

Price = Annotated[float, Field(ge=0, le=1e9)]


class Accelerator(Section):
    """One device. A chip of the table brings its peak, memory and links. Figures that are not known stay unknown."""

    kind: str = said("a chip of the table such as H100-SXM, cpu, or another device's name with its peak", "cpu")
    peak_flops: FlopsPerSecond | None = said(
        "dense peak in the recipe's precision, FLOP/s, such as 989T; None: the chip's, else unknown", None
    )
    memory: Bytes | None = said("memory per device; None: the chip's, else unknown", None)
    utilisation: Annotated[float, Field(ge=0.001, le=1)] | None = said(
        "share of the peak to assume for a plan without a measurement, 0.001 to 1; None: measure", None
    )
    utilisation_convention: Literal["6N", "causal", "full"] = said("FLOPs that this share counts", "6N")
    domain: Whole | None = said(
        "devices that the fast links join, at most a machine's, of racks and slices the chip's; None: as many", None
    )
    network: BytesPerSecond | None = said("bytes/s of one device to other domains, one way; None: the chip's usual", None)


class Power(Section):
    """What a device hour takes from the grid."""

    watts: Annotated[float, Field(gt=0, le=1e6)] | None = said(
        "per device, its share of host, fans and network included; None: 1.2 to 1.9 times the chip's", None
    )
    pue: Annotated[float, Field(ge=1, le=5)] | None = said(
        "power of the building over that of the machines; None: 1.05 to 1.56", None
    )
    carbon_per_kwh: Annotated[float, Field(ge=0, le=5)] | None = said("kg of CO2 per kWh of the grid; None: unknown", None)
    carbon_source: str = said("where that figure comes from: grid, year, method", "")
    price_per_kwh: Price | None = said("price of electricity, in the currency; None: unknown, or part of the hour's price", None)


FaultName = Literal["process", "node", "network", "domain", "silent", "stop"]
"""What simulated runs meet: the classes of ``plan/failure/faults.py``; ``stop`` is all of them that end the job at once."""
STOPPING: frozenset[str] = frozenset({"process", "node", "network", "domain"})
ALL_FAULTS = STOPPING | {"silent"}


class Pause(Section):
    """A planned pause, for plans: the job saves, stands still and restarts. Pauses that fall together are one."""

    what: Name = said("what is done in it, such as firmware")
    every: Annotated[Seconds, Field(gt=0)] = said("calendar time from one to the next, duration")
    length: Annotated[Seconds, Field(gt=0)] = said("how long the job stands still, shorter than every, duration")


class Elastic(Section):
    """A job that goes on with the nodes that are left while the broken ones are repaired, for plans. Needs failures.repair."""

    reconfigure: Seconds = said("time to shrink, and again to grow, in place of a restart, duration shorter than the repair")
    pace: Annotated[float, Field(gt=0, lt=1)] | None = said(
        "share of the pace with one node missing, two cost twice that; None: as many nodes as are left, 1 - 1 / nodes", None
    )


class Failures(Section):
    """How often the job is interrupted, and what that costs. ``every`` or ``per_device``, not both."""

    every: Seconds | None = said("mean time between interruptions of the whole job, duration; None: unknown", None)
    per_device: Annotated[Seconds, Field(ge=1)] | None = said(
        "mean time between interruptions that one device causes, in device hours such as 50700h, at least 1s; None: see every",
        None,
    )
    restart: Seconds = said("time from an interruption to the next step, duration", 60.0)
    detection: Seconds = said("time until an interruption is noticed, duration; 0: part of restart", 0.0)
    spares: WholeOrZero = said("devices that stand by", 0)
    repair: Annotated[Seconds, Field(gt=0)] | None = said("time until a failed device is back, duration; None: unknown", None)
    correlated: Share = said("share of interruptions that take a whole domain", 0.0)
    pauses: Listed[Pause] = said("planned pauses, for plans; empty: none", ())
    elastic: Elastic | None = said("going on with fewer nodes, for plans; None: the job waits for the repair", None)

    def between(self, devices: int) -> float | None:
        """Seconds between interruptions of a job on so many devices; None: unknown."""
        return self.per_device / devices if self.per_device is not None else self.every


class Storage(Section):
    """Where checkpoints go."""

    write_speed: BytesPerSecond | None = said("bytes per second that a save can write, over all processes; None: measure", None)
    read_speed: BytesPerSecond | None = said("bytes per second that a restore can read, over all; None: as write_speed", None)
    price_per_tb_month: Price | None = said("price of 10^12 bytes for 30 days; None: unknown", None)
    capacity: Bytes | None = said("bytes that checkpoints may take; None: unknown", None)


AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Of the mesh, outermost first; their product is the number of processes. Experts lie over dp_shard x cp."""


def _offload(value: Any, info: ValidationInfo) -> Any:
    """In records of the first deployments it is a truth value."""
    return str(Offload.of_record(value)) if isinstance(value, bool) and info.context == AS_RESOLVED else value


class Layout(Section):
    """Sizes of the mesh axes, whose product is the number of processes, and how a step is carried out on them."""

    pp: Whole = said("pipeline stages", 1)
    dp_replicate: Whole = said("replicas that hold everything", 1)
    dp_shard: Whole = said("replicas that share the states", 1)
    cp: Whole = said("parts of a sequence", 1)
    tp: Whole = said("parts of a matrix", 1)
    ep: Whole = said("groups of experts; laid over dp_shard x cp, not counted in the product", 1)
    virtual: Whole = said("pieces of the model per pipeline stage", 1)
    pipeline: Literal["gpipe", "1f1b", "interleaved", "zero-bubble"] = said("order of micro-batches through the stages", "1f1b")
    micro_batch: Whole = said("sequences of one forward pass of a replica, in plans", 1)
    zero: Annotated[int, Field(ge=0, le=3)] = said(
        "shared over dp_shard: 1 moments, 2 gradients too, 3 weights too (a pipeline keeps them whole); 0: nothing", 3
    )
    recompute: Literal["none", "selective", "light", "ops", "full"] = said(
        "what the backward pass computes again instead of keeping it", "none"
    )
    sequence_parallel: bool = said("norms and the residual stream are split over tp too; false only in plans", True)
    offload: Annotated[Literal["none", "optimizer", "activations", "all"], BeforeValidator(_offload)] = said(
        "what lies in host memory while it is not needed: moments of the optimizer, what blocks keep for their backward pass",
        "none",
    )

    @property
    def world(self) -> int:
        return math.prod(getattr(self, axis) for axis in AXES)


class State(Section):
    """Bytes per parameter while training, for plans. The default is mixed precision with fp32 gradients and master weights."""

    weight_bytes: Annotated[int, Field(ge=1, le=8)] = said("of the weights that products read", 2)
    gradient_bytes: Annotated[int, Field(ge=0, le=8)] = said("of gradients", 4)
    optimizer_bytes: Annotated[int, Field(ge=0, le=24)] = said("of master weights and moments", 12)


class Implementation(Section):
    """What the kernels do, for plans. Published runs of 2020 to 2022 had the first two false and dropout true."""

    flash: bool = said("attention scores never reach memory", True)
    flash_generation: Annotated[Literal[1, 2, 3] | None, one_of(1, 2, 3)] = said(
        "which FlashAttention; None: the newest that the chip has", None
    )
    fused: bool = said("chains of elementwise operations are one pass", True)
    dropout: bool = said("masks are kept, a byte per element", False)
    chunked_loss: bool = said("logits of a few thousand tokens at a time", False)
    loss: Literal["eager", "in-place", "compiled"] = said("how logits become a loss: two fp32 copies, one, or none", "in-place")
    keeps_logits: bool = said("a pipeline's last stage keeps all micro-batches' logits", False)
    overlap: bool = said("gradients are reduced and weights gathered while blocks compute", True)
    overlap_ep: bool = said("exchanges with experts run beside another micro-batch's computation, as in DualPipe", False)
    overlap_tp: bool = said("tensor-parallel collectives are cut up and hidden behind the products beside them", False)


class CheckpointTier(Section):
    """A faster place for checkpoints in front of the storage, for plans: memory of the hosts, local disks. Fastest first."""

    name: Name = said("what people call it, such as host memory")
    every: Annotated[Seconds, Field(gt=0)] = said("training time between two checkpoints in it, duration")
    cost: Seconds = said("time that one blocks training, shorter than every, duration")
    restore: Seconds = said("time to read one after an interruption, besides failures.restart, duration")
    survives: Listed[FaultName] = said(
        "faults after which it can still be read: process, node, network, domain (they end the job; all four: stop), silent"
    )
    keep: Whole = said("newest checkpoints that stay in it", 1)

    @property
    def outlives(self) -> frozenset[str]:
        """Classes of faults by name."""
        return (frozenset(self.survives) & ALL_FAULTS) | (STOPPING if "stop" in self.survives else frozenset())


class AdaptiveInterval(Section):
    """Let the trainer choose when to save, by what saves, restarts and failures cost it (Daly). Every change is on record."""

    least: Annotated[Seconds, Field(gt=0)] = said("never sooner after the save before, duration", 60.0)
    most: Annotated[Seconds, Field(gt=0)] = said("never later, duration, at least as long", 3600.0)


def _some_url(text: str) -> str:
    if problem := secret_in(text, "mirror"):  # said before run.json has it
        raise PydanticCustomError("quantity", "{seen}", {"seen": problem.seen, "rule": f"{problem.rule}; {problem.way_out}"})
    if "://" not in text and not text.startswith("/"):
        rule = "a URL such as s3://bucket/runs or file:///shared/runs, or an absolute path"
        raise PydanticCustomError("quantity", "{seen}", {"seen": f"{text!r} names no second place", "rule": rule})
    return text


class CheckpointPolicy(Section):
    """When checkpoints are written and which are kept: on the storage, which survives every fault."""

    every_steps: Whole = said("steps between two checkpoints; the last step always has one", 100)
    every: Annotated[Seconds, Field(gt=0)] | None = said(
        "time between two checkpoints instead, duration, for plans: the trainer counts steps; None: every_steps", None
    )
    adaptive: AdaptiveInterval | None = said(
        "a table, also an empty one: the trainer chooses the interval by what saves, restarts and failures cost "
        "(failures.every, else one a day, until it has learned); it begins with every_steps, between the bounds. "
        "None: every_steps",
        None,
    )
    when_busy: Literal["skip", "wait"] = said(
        "a save that comes due while the one before is still being written: leave it out with an alarm, or wait", "skip"
    )
    flush_speed: BytesPerSecond | None = said(
        "bytes per second that a process writes at most while training goes on; None: what the storage takes", None
    )
    snapshot_linger: Seconds = said("how long a dead trainer's snapshot stays in host memory for the next one, duration", 300.0)
    keep_last: Whole = said("newest verified checkpoints that are kept", 2)
    permanent_every: WholeOrZero = said("every n-th checkpoint is kept for good; 0: none", 0)
    keep_best: WholeOrZero = said(
        "checkpoints with the lowest held-out loss that are kept, of those saved at a step that was evaluated", 0
    )
    budget: Bytes | None = said("bytes that the checkpoints of a run may take; None: no limit", None)
    mirror: Annotated[str, AfterValidator(_some_url)] | None = said(
        "a second place for committed checkpoints: s3://bucket/runs, or file:///shared/runs, a directory that exists; None: none",
        None,
    )
    mirror_every: Whole = said("every n-th committed checkpoint is copied there", 1)
    bytes_per_parameter: Annotated[int, Field(ge=2, le=32)] = said(
        "for plans: this engine writes 12, fp32 weights and two moments; published plans often count 16", 12
    )
    tiers: Listed[CheckpointTier] = said("faster places in front of the storage, for plans; empty: none", ())


class LogPolicy(Section):
    """What is shown while it runs. Records hold every step, whatever stands here."""

    every_steps: Whole = said("steps between two progress lines", 10)


MIN_LEASE_TTL_SECONDS = 1.0


def _long_enough_to_renew(seconds: float) -> float:
    if seconds < MIN_LEASE_TTL_SECONDS:
        rule = "a lease lasts at least 1s: its owner renews it ten times in that time, and gives it up after half of it"
        raise PydanticCustomError("quantity", "{seen}", {"seen": f"a lease of {units.format_seconds(seconds)}", "rule": rule})
    return seconds


Phase = Literal["init", "restore", "compile", "data", "step", "record", "evaluation", "save", "end"]


class Corruption(Section):
    """When results are checked for silent corruption. A finding ends the segment, and names rank, host and parameter."""

    compare_every: WholeOrZero = said(
        "steps between two comparisons of what several processes hold alike; before each save too; 0: none, neither then", 100
    )
    repeat_every: WholeOrZero = said(
        "every n-th step is carried out again from the state before it, and compared bit by bit: it takes the time of two to "
        "four steps, and memory of the host for weights and moments; 0: none",
        600,
    )


class Supervise(Section):
    """How a run is watched and restarted."""

    max_fruitless_attempts: Whole = said("attempts in a row without a newly committed step before the run is given up", 3)
    lease_ttl: Annotated[Seconds, AfterValidator(_long_enough_to_renew)] = said(
        "a lease whose counter stood still this long is free, duration, at least 1s", 15.0
    )
    hang_floor: Annotated[Seconds, Field(gt=0)] = said("no progress for less than this is never a hang, duration", 120.0)
    limits: dict[Phase, Annotated[Seconds, Field(gt=0)]] = said(
        "most time without progress by phase (init, restore, compile, data, step, record, evaluation, save, end), duration each; "
        "30min where none is stated. A phase that this run has ended before has a limit learned from it, if that is less",
        {},
    )
    grace: Annotated[Seconds, Field(gt=0)] = said(
        "least time between the termination signal and the kill, duration; twice the longest step and save seen, if that is more",
        30.0,
    )
    requeue: Listed[Annotated[str, Field(min_length=1)]] = said(
        "command to run when a signal stopped the run before its end, {NAME} a variable of the environment: "
        '["scontrol", "requeue", "{SLURM_JOB_ID}"]; empty: none',
        (),
    )
    per_step: Literal["off", "torchft"] = said(
        "torchft: the dp_replicate replicas are groups; when one is lost the others do that step again and go on, and it comes "
        "back. off: losing a process is a restart of all from a checkpoint",
        "off",
    )
    corruption: Corruption = said("checks for silent corruption", Corruption())


class Fleet(Section):
    """The machines of a run on several, each with an agent that the supervisor starts; ranks meet in a store beside it."""

    hosts: Listed[HostName] = said(
        "names of the machines, as start knows them: the first nodes of them train, the others are hot stand-by", ()
    )
    start: Listed[Annotated[str, Field(min_length=1)]] | None = said(
        'command that runs another on a machine, {host} its name: ["ssh", "{host}"], ["srun", "-N1", "-w", "{host}"]; '
        "[]: on this machine, for drills",
        None,
    )
    python: str | None = said("interpreter on the machines; None: the path of this one", None)
    address: str = said("address of the machine that runs headway, which all machines reach", "127.0.0.1")
    least: Whole | None = said(
        "machines to go on with when others are lost: fewer data-parallel replicas, the same batch and stream; None: wait", None
    )
    evict_after: Whole = said("faults that begin on a machine before the run goes on without it", 2)
    rejoin: Annotated[Seconds, Field(gt=0)] = said("between two tries to reach a lost machine, duration", 60.0)
    silence: Annotated[Seconds, Field(ge=2)] = said("without a word of a machine's agent, which speaks every second: lost", 10.0)
    patience: Annotated[Seconds, Field(gt=0)] = said("for the first word of an agent, duration", 60.0)
    check: bool = said("a machine joins when it has passed the quick check of headway doctor", True)


class DataCache(Section):
    """Where shards are kept on each machine while they are read, when the data lies at a URL. Processes and runs share it."""

    directory: str | None = said("a directory of a local disk; None: headway/data under XDG_CACHE_HOME, else ~/.cache", None)
    size: Bytes | None = said(
        "most bytes of shards that it holds; None: 16 GiB, or two chunks of every source if that is more. Too few are refused, "
        "with the number that works",
        None,
    )


class Deployment(Section):
    """Where and how a run is carried out."""

    kind: Literal["deployment"] = said("says that this file is a deployment", "deployment")
    schema_version: Version = said("version of this format", 1)
    accelerator: Accelerator = said("the device", Accelerator())
    nodes: Whole = said("machines", 1)
    processes_per_node: Whole = said("processes per machine, one per device", 1)
    threads: Whole | None = said(
        "threads per process, at most 1,024; None: its share of the cores that may be used", None, le=1024
    )
    micro_batch: Tokens | None = said("tokens per process in one forward pass; None: 8,192. Only splits the batch", None)
    price_per_hour: Price | None = said("price of one device hour; None: unknown", None)
    currency: str = said("currency of the price", "USD")
    power: Power = said("what it takes from the grid", Power())
    failures: Failures = said("interruptions", Failures())
    storage: Storage = said("where checkpoints go", Storage())
    layouts: dict[str, Layout] = said("stage -> mesh; 'default' for the others", {})
    state: State = said("bytes per parameter, for plans", State())
    implementation: Implementation = said("what the kernels do, for plans", Implementation())
    checkpoints: CheckpointPolicy = said("when checkpoints are written and kept", CheckpointPolicy())
    log: LogPolicy = said("what is shown", LogPolicy())
    state_digest_every: WholeOrZero = said("steps between two digests of the whole state in the records; 0: none", 0)
    supervise: Supervise = said("how the run is watched and restarted", Supervise())
    fleet: Fleet = said("the machines, where there are several", Fleet())
    data_directory: str | None = said("where built data lies, a directory or a URL; None: beside the run directories", None)
    cache: DataCache = said("for data at a URL", DataCache())
    notes: Listed[str] = said("anything worth keeping beside the run", ())

    @property
    def world(self) -> int:
        return self.nodes * self.processes_per_node

    @property
    def chip(self) -> Chip | None:
        """The chip of the table; None for cpu and devices that it does not hold."""
        return known_chip(self.accelerator.kind)

    @property
    def domain(self) -> int:
        """Devices that share fast links: as stated, or the chip's, where machines are not smaller than that."""
        chip, machine = self.chip, self.processes_per_node
        if self.accelerator.domain is not None:
            return self.accelerator.domain
        if chip is None or chip.domain == 1:
            return machine
        return min(chip.domain, machine) if chip.domain <= LARGEST_MACHINE else chip.domain

    @property
    def between_failures(self) -> float | None:
        """Mean seconds between interruptions of the whole job; None: unknown."""
        return self.failures.between(self.world)

    def layout(self, stage: str) -> Layout:
        """The mesh of training stage ``stage``."""
        return self.layouts.get(stage) or self.layouts.get("default") or Layout()

    @property
    def micro_batch_tokens(self) -> int:
        return self.micro_batch or DEFAULT_MICRO_BATCH_TOKENS

    @property
    def threads_per_process(self) -> int:
        """As stated, or its share of the cores that this process may use at this moment."""
        return self.threads or max(1, len(os.sched_getaffinity(0)) // self.processes_per_node)

    def resolved(self) -> dict[str, Any]:
        """Plain data with the keys of this schema, and nothing left open that the trainer acts on (law 2).

        None stays where a figure is unknown (peak, price, failure rate). ``threads`` is what this machine offers now, so
        that a resume elsewhere computes with as many and stays bitwise equal.
        """
        filled = {"micro_batch": self.micro_batch_tokens, "threads": self.threads_per_process}
        return self.model_copy(update=filled).model_dump(mode="json", by_alias=True)

    @classmethod
    def of_resolved(cls, plain: dict[str, Any]) -> Deployment:
        """The deployment that ``resolved`` gave; pydantic's ValidationError where another version wrote it."""
        return cls.model_validate(plain, context=AS_RESOLVED)


DEFAULT_MICRO_BATCH_TOKENS = 8192
"""Tokens of one forward pass where the deployment says nothing: enough to fill two cores, small enough for a laptop."""

LARGEST_MACHINE = 16
"""Devices. A chip's domain up to this size is a machine: smaller machines have smaller domains. Larger ones are racks, slices."""

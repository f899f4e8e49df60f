"""The deployment: everything that does not change the mathematics of a run. The same recipe on another one is the same run.

Every field has a default; together they mean one process on this machine. ``layouts`` gives the mesh per training stage,
"default" for the stages that are not named.
"""

from __future__ import annotations

import math
import os
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from headway.base import units
from headway.recipe.fields import (
    Bytes,
    BytesPerSecond,
    FlopsPerSecond,
    Listed,
    Seconds,
    Section,
    Share,
    Tokens,
    Whole,
    WholeOrZero,
)
from headway.recipe.schema import said


class Accelerator(Section):
    """One device. Unknown figures stay unknown: no other chip's peak is ever borrowed."""

    kind: str = said("name of the device, as people know it", "cpu")
    peak_flops: FlopsPerSecond | None = said("dense peak in the recipe's precision, FLOP/s, such as 989T; None: unknown", None)
    memory: Bytes | None = said("memory per device; None: unknown", None)
    utilisation: Share | None = said("share of the peak to assume for a plan without a measurement; None: measure", None)


class Failures(Section):
    """How often the whole job is interrupted, and what that costs."""

    every: Seconds | None = said("mean time between interruptions of the whole job, duration; None: unknown", None)
    restart: Seconds = said("time from an interruption to the next step, duration", 60.0)


class Storage(Section):
    """Where checkpoints go."""

    write_speed: BytesPerSecond | None = said("bytes per second that a save can write, over all processes; None: measure", None)


class Layout(Section):
    """Sizes of the mesh axes. Their product is the number of processes."""

    pp: Whole = said("pipeline stages", 1)
    dp_replicate: Whole = said("replicas that hold everything", 1)
    dp_shard: Whole = said("replicas that share the states", 1)
    cp: Whole = said("parts of a sequence", 1)
    tp: Whole = said("parts of a matrix", 1)
    ep: Whole = said("groups of experts; laid over dp_shard x cp, not counted in the product", 1)

    @property
    def world(self) -> int:
        return math.prod((self.pp, self.dp_replicate, self.dp_shard, self.cp, self.tp))


class CheckpointPolicy(Section):
    """When checkpoints are written and which are kept."""

    every_steps: Whole = said("steps between two checkpoints; the last step always has one", 100)
    keep_last: Whole = said("newest verified checkpoints that are kept", 2)
    permanent_every: WholeOrZero = said("every n-th checkpoint is kept for good; 0: none", 0)


class LogPolicy(Section):
    """What is shown while it runs. Records hold every step, whatever stands here."""

    every_steps: Whole = said("steps between two progress lines", 10)


MIN_LEASE_TTL_SECONDS = 1.0


def _long_enough_to_renew(seconds: float) -> float:
    if seconds < MIN_LEASE_TTL_SECONDS:
        rule = "a lease lasts at least 1s: its owner renews it ten times in that time, and gives it up after half of it"
        raise PydanticCustomError("quantity", "{seen}", {"seen": f"a lease of {units.format_seconds(seconds)}", "rule": rule})
    return seconds


class Supervise(Section):
    """How a run is watched and restarted."""

    max_fruitless_attempts: Whole = said("attempts in a row without a newly committed step before the run is given up", 3)
    lease_ttl: Annotated[Seconds, AfterValidator(_long_enough_to_renew)] = said(
        "a lease whose counter stood still this long is free, duration, at least 1s", 15.0
    )
    hang_floor: Annotated[Seconds, Field(gt=0)] = said("no progress for less than this is never a hang, duration", 120.0)
    grace: Annotated[Seconds, Field(gt=0)] = said(
        "least time between the termination signal and the kill, duration; twice the longest step and save seen, if that is more",
        30.0,
    )


class Deployment(Section):
    """Where and how a run is carried out."""

    kind: Literal["deployment"] = said("says that this file is a deployment", "deployment")
    schema_version: Literal[1] = said("version of this format", 1)
    accelerator: Accelerator = said("the device", Accelerator())
    nodes: Whole = said("machines", 1)
    processes_per_node: Whole = said("processes per machine, one per device", 1)
    threads: Whole | None = said("threads per process, at most 1,024; None: the cores this process may use", None, le=1024)
    micro_batch: Tokens | None = said("tokens per process in one forward pass; None: 8,192. Only splits the batch", None)
    price_per_hour: Annotated[float, Field(ge=0)] | None = said("price of one device hour; None: unknown", None)
    currency: str = said("currency of the price", "USD")
    failures: Failures = said("interruptions", Failures())
    storage: Storage = said("where checkpoints go", Storage())
    layouts: dict[str, Layout] = said("stage -> mesh; 'default' for the others", {})
    checkpoints: CheckpointPolicy = said("when checkpoints are written and kept", CheckpointPolicy())
    log: LogPolicy = said("what is shown", LogPolicy())
    state_digest_every: WholeOrZero = said("steps between two digests of the whole state in the records; 0: none", 0)
    supervise: Supervise = said("how the run is watched and restarted", Supervise())
    data_directory: str | None = said("where built data lies; None: beside the run directories", None)
    notes: Listed[str] = said("anything worth keeping beside the run", ())

    @property
    def world(self) -> int:
        return self.nodes * self.processes_per_node

    def layout(self, stage: str) -> Layout:
        """The mesh of training stage ``stage``."""
        return self.layouts.get(stage) or self.layouts.get("default") or Layout()

    @property
    def micro_batch_tokens(self) -> int:
        return self.micro_batch or DEFAULT_MICRO_BATCH_TOKENS

    @property
    def threads_per_process(self) -> int:
        """As stated, or the cores that this process may use at this moment."""
        return self.threads or len(os.sched_getaffinity(0))

    def resolved(self) -> dict[str, Any]:
        """Plain data with the keys of this schema, and nothing left open that the trainer acts on (law 2).

        None stays where a figure is unknown (peak, price, failure rate). ``threads`` is what this machine offers now, so
        that a resume elsewhere computes with as many and stays bitwise equal.
        """
        filled = {"micro_batch": self.micro_batch_tokens, "threads": self.threads_per_process}
        return self.model_copy(update=filled).model_dump(mode="json", by_alias=True)


DEFAULT_MICRO_BATCH_TOKENS = 8192
"""Tokens of one forward pass where the deployment says nothing: enough to fill two cores, small enough for a laptop."""

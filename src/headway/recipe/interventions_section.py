"""What may be changed while a run goes on, and by whom: ``interventions`` of a recipe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headway.recipe.fields import Listed, Positive, Section, Whole, WholeOrZero, said


class SpikePolicy(Section):
    """What happens when the loss or the gradient norm spikes: go back, skip, and on recurrence go slower."""

    policy: Literal["off", "skip_update", "roll_back", "stop"] = said(
        "off: the step is marked, nothing else; skip_update: its update is left out; roll_back: an older state is restored and "
        "batches around the spike are skipped; stop: the run ends there and a person decides. For these two a gradient "
        "norm alone counts from the third such step in a row",
        "off",
    )
    threshold: Positive = said(
        "a step is a spike where the logarithm of its loss or gradient norm lies so many robust standard deviations above the "
        "median of the last 128 sound steps of its stage, 3 to 1000",
        10.0,
        ge=3,
        le=1000,
    )
    rewind_steps: WholeOrZero = said("restore the newest checkpoint at least this many steps before the spike", 100, lt=2**62)
    skip_batches: WholeOrZero = said(
        "batches left out, the spike's own among them: a third lies before it, at most rewind_steps; 0: none, at most 1,000,000",
        300,
        le=1_000_000,
    )
    recurrence_rate_factor: Annotated[float, Field(gt=0, le=1)] = said(
        "rate is multiplied by this from the restored step on, if another spike follows within rewind_steps + skip_batches steps",
        0.8,
    )
    most_roll_backs: Whole = said("roll-backs for spikes that followed so closely; at one more the run stops", 3, le=1000)


class Permission(Section):
    """One kind of intervention and who may decide it."""

    what: Literal["restart", "roll back", "skip batches", "lower rate", "fewer nodes", "change recipe"] = said("the intervention")
    by: Literal["automatic", "person", "nobody"] = said("who decides; a person's change is a new run with this one as parent")


class Interventions(Section):
    """What may be changed while it runs, by whom. Every intervention is recorded with parent, reason and author."""

    spikes: SpikePolicy = said("policy for loss spikes", SpikePolicy())
    permissions: Listed[Permission] = said(
        "empty: restarts, and what spikes and damaged_data say, are automatic; everything else is a person's decision", ()
    )
    damaged_data: Literal["stop", "quarantine"] = said(
        "training tokens that do not have their digest: stop, or go on without them (at most a tenth of a source), on record",
        "stop",
    )
    mixture: Literal["fixed", "adaptive"] = said(
        "adaptive: headway resume RUN --mixture may change it, on record with reason, author and consumed tokens", "fixed"
    )
    owner: str = said("who answers for the run while it runs", "")

"""Whether what a recipe does about spikes is what its permissions allow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headway.recipe.findings import Finding, found
from headway.recipe.idle_keys import check_idle

if TYPE_CHECKING:
    from headway.recipe.interventions_section import Interventions, SpikePolicy


def check_interventions(interventions: Interventions) -> Iterator[Finding]:
    spikes = interventions.spikes
    yield from check_idle(("interventions", "spikes"), spikes)
    done = done_by_itself(spikes)
    for index, permission in enumerate(interventions.permissions):
        if permission.what in done and permission.by != "automatic":
            yield found(
                ("interventions", "permissions", index),
                f'"{permission.what}" is for {permission.by} to decide, and spikes.policy = "roll_back" does it by itself',
                "a policy and a permission do not contradict each other",
                'choose by = "automatic", or policy = "stop": the run then stops at a spike, and a person answers',
            )


def done_by_itself(spikes: SpikePolicy) -> tuple[str, ...]:
    """What the policy does without asking, in the words of permissions."""
    if spikes.policy != "roll_back":
        return ()
    skips = ("skip batches",) if spikes.skip_batches else ()
    slows = ("lower rate",) if spikes.recurrence_rate_factor < 1 else ()
    return ("roll back", *skips, *slows)

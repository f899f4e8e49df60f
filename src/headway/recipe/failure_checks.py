"""Whether what a deployment says about surviving faults can be: when it saves, tiers, planned pauses, shrinking.

adaptive |--least-----|..the trainer's choice..|most     at least one interval is left to choose
tiers    host memory | local disk | ... | storage       each written less often than the one before, and of use:
         often        <=           <=     seldom         it survives, or keeps longer, what those before it do not
pauses   |--every--------------------|length|            together they leave time to train
elastic  |x|reconfigure|--fewer nodes--|                 pays while the repair takes longer than the reconfiguration
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headway.base.units import format_seconds
from headway.recipe.deployment import ALL_FAULTS
from headway.recipe.findings import Finding, found

if TYPE_CHECKING:
    from headway.recipe.deployment import CheckpointPolicy, CheckpointTier, Deployment, Failures


def check_survival(deployment: Deployment) -> Iterator[Finding]:
    """Contradictions in checkpoints.adaptive, checkpoints.tiers, failures.pauses and failures.elastic."""
    policy = deployment.checkpoints
    yield from _check_adaptive(policy)
    for place, tier in enumerate(policy.tiers):
        yield from _check_tier(tier, ("checkpoints", "tiers", place))
        yield from _check_order(policy, place)
    yield from _check_storage(policy)
    yield from _check_pauses(deployment.failures)
    yield from _check_elastic(deployment)


# --- the trainer's choice ---------------------------------------------------------------------------------------------


def _check_adaptive(policy: CheckpointPolicy) -> Iterator[Finding]:
    """The bound that is not the default is the one to look at."""
    adaptive = policy.adaptive
    if adaptive is None or adaptive.least <= adaptive.most:
        return
    field = "least" if "least" in adaptive.model_fields_set else "most"
    seen = (
        f"saves come at least {format_seconds(adaptive.least)} and at most {format_seconds(adaptive.most)} after the one before"
    )
    rule = "the trainer chooses between both bounds: least is not above most"
    yield found(("checkpoints", "adaptive", field), seen, rule, "lower checkpoints.adaptive.least, or raise most")


# --- tiers ------------------------------------------------------------------------------------------------------------


def _check_tier(tier: CheckpointTier, path: tuple[str | int, ...]) -> Iterator[Finding]:
    """One by itself."""
    if not tier.survives:
        way_out = "name what it survives, such as process, or remove it"
        yield found((*path, "survives"), f"{tier.name} survives nothing", "nothing is ever restored from such a tier", way_out)
    if tier.cost >= tier.every:
        seen = f"{tier.name} blocks training for {format_seconds(tier.cost)} every {format_seconds(tier.every)}"
        yield found((*path, "cost"), seen, "a checkpoint takes less time than passes from one to the next", "save less often")


def _check_order(policy: CheckpointPolicy, place: int) -> Iterator[Finding]:
    """One against those before it."""
    tier, before, path = policy.tiers[place], policy.tiers[:place], ("checkpoints", "tiers", place)
    if tier.name in {other.name for other in before}:
        yield found((*path, "name"), f"two tiers are called {tier.name}", "every tier has a name of its own", "rename one")
    if before and tier.every < before[-1].every:
        seen = f"{tier.name} every {format_seconds(tier.every)} stands after {before[-1].name} every "
        seen += format_seconds(before[-1].every)
        yield found((*path, "every"), seen, "tiers stand in order, the one that is written most often first", "swap them")
        return
    better = next((other for other in before if _makes_useless(other, tier)), None)
    if better is not None and tier.survives:
        seen = f"{tier.name} survives nothing that {better.name} does not, and is written no more often"
        yield found((*path, "survives"), seen, "a slower tier survives more than a faster one, or keeps longer", "remove it")


def _makes_useless(faster: CheckpointTier, slower: CheckpointTier) -> bool:
    """Whether ``faster`` always has what ``slower`` has; behind a silent fault it matters how far back a tier reaches."""
    reaches = "silent" not in slower.outlives or slower.keep * slower.every <= faster.keep * faster.every
    return slower.outlives <= faster.outlives and reaches and slower.restore >= faster.restore


def _check_storage(policy: CheckpointPolicy) -> Iterator[Finding]:
    """The storage comes last: it survives everything. A cadence in steps is compared where step times are known."""
    for place, tier in enumerate(policy.tiers if policy.every is not None else ()):
        assert policy.every is not None
        path, cadences = ("checkpoints", "tiers", place), f"every {format_seconds(tier.every)}"
        if tier.every > policy.every:
            seen = f"{tier.name} is written {cadences}, the storage every {format_seconds(policy.every)}"
            yield found((*path, "every"), seen, "a tier in front of the storage is written more often than that", "remove it")
        elif tier.every == policy.every and tier.outlives == ALL_FAULTS:
            seen = f"{tier.name} survives everything and is written {cadences}, as the storage is"
            rule = "the storage is the last tier itself: checkpoints.every and [storage] describe it"
            yield found((*path, "survives"), seen, rule, "remove it: its writes would be counted twice")


# --- pauses, shrinking ------------------------------------------------------------------------------------------------


def _check_pauses(failures: Failures) -> Iterator[Finding]:
    for place, pause in enumerate(failures.pauses):
        if pause.length >= pause.every:
            seen = f"{pause.what} takes {format_seconds(pause.length)} every {format_seconds(pause.every)}"
            rule = "a pause is shorter than the time from one to the next"
            yield found(("failures", "pauses", place, "length"), seen, rule, "swap them, or pause less often")
    share = sum(pause.length / pause.every for pause in failures.pauses)
    if share >= 1 and all(pause.length < pause.every for pause in failures.pauses):
        seen = f"planned pauses take {100 * share:.3g} % of the time"
        yield found(("failures", "pauses"), seen, "together they leave time to train", "pause less often")


def _check_elastic(deployment: Deployment) -> Iterator[Finding]:
    elastic, repair = deployment.failures.elastic, deployment.failures.repair
    if elastic is None:
        return
    path = ("failures", "elastic")
    if repair is None:
        seen = "the job shrinks, and no repair time says when it grows again"
        yield found(path, seen, "shrinking is weighed against waiting for the repair", "give failures.repair")
    elif elastic.reconfigure >= repair:
        seen = f"shrinking takes {format_seconds(elastic.reconfigure)}, the repair {format_seconds(repair)}"
        yield found((*path, "reconfigure"), seen, "a job shrinks where that is done before the repair", "leave elastic out")
    if deployment.nodes < 2:
        yield found(path, "a job on one node shrinks", "at least one node goes on", "leave elastic out")

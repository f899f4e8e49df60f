"""What a run keeps, as its deployment says.

keep_last        newest verified ones            keep_best   lowest held-out loss on record at their step
permanent_every  every n-th committed one        budget      bytes of all of them together

Where the recipe rolls back spikes, one that is old enough for that is kept besides (``back_steps``).
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.base.errors import ConfigError, RunError
from headway.recipe.spike_rules import SpikeRules
from headway.rundir.layout import RunDirectory
from headway.rundir.segments import deployment_of

KEYS = ("keep_last", "permanent_every", "keep_best", "budget")
"""Of ``deployment.checkpoints``: what it says about retention."""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """What is kept beside the newest verified checkpoint. None or 0, but of ``keep_last``: no such rule."""

    keep_last: int  # newest ones, that one included
    permanent_every: int | None = None  # every n-th committed checkpoint of the history is kept for good
    keep_best: int = 0  # checkpoints with the lowest held-out loss
    back_steps: int = 0  # what roll-backs of so many steps need is kept
    budget_bytes: int | None = None  # that all checkpoints of the run may take; overrules ``keep_last`` alone

    def __post_init__(self) -> None:
        if self.keep_last < 1:
            raise ConfigError(f"keep_last = {self.keep_last}", "at least one checkpoint is kept", "set keep_last to 1 or more")
        for name in ("permanent_every", "keep_best", "back_steps", "budget_bytes"):
            if (getattr(self, name) or 0) < 0:
                raise ConfigError(f"{name} = {getattr(self, name)}", "it is no less than 0", f"set {name} to 0 to leave it out")

    def is_permanent(self, ordinal: int | None) -> bool:
        """``ordinal``: the how many-th committed save of the history it is, from 1; None: unknown."""
        return bool(ordinal and self.permanent_every and ordinal % self.permanent_every == 0)


def policy_of(run: RunDirectory) -> Retention:
    """The policy in force; keys that its version did not know have their defaults."""
    from pydantic import ValidationError  # here: most of what imports a policy reads none

    from headway.recipe.deployment import CheckpointPolicy
    from headway.recipe.fields import AS_RESOLVED

    stated = deployment_of(run).get("checkpoints", {})
    known = {key: stated[key] for key in KEYS if key in stated} if isinstance(stated, dict) else stated
    try:
        read = CheckpointPolicy.model_validate(known, context=AS_RESOLVED)
    except ValidationError as error:
        raise RunError(
            f"deployment.checkpoints of this run cannot be read: {' '.join(str(error).split())}",
            f"a run obeys the policy that it was created with; path: {run.run_file}",
            "restore the file from a copy",
        ) from error
    return Retention(
        keep_last=read.keep_last,
        permanent_every=read.permanent_every,
        keep_best=read.keep_best,
        back_steps=SpikeRules.of(run.spec()).keeps_back_steps if run.spec_file.exists() else 0,
        budget_bytes=read.budget,
    )

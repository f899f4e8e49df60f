"""What a run does about a spike of its loss or gradient norm, as its Spec froze it.

off          a step that stands out is marked in its row, and nothing else happens
skip_update  its update is left out, before it is made
roll_back    an older state is restored, and the batches around the spike are skipped
stop         the run ends there, and a person decides
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headway.recipe.spec import Spec


class OnSpike(StrEnum):
    """``interventions.spikes.policy``."""

    OFF = "off"
    SKIP_UPDATE = "skip_update"
    ROLL_BACK = "roll_back"
    STOP = "stop"


@dataclass(frozen=True, kw_only=True)
class SpikeRules:
    """The keys of ``interventions.spikes``; what a Spec leaves out has the default of its recipe."""

    policy: OnSpike = OnSpike.OFF
    threshold: float = 10.0  # robust standard deviations above the recent median
    rewind_steps: int = 100  # a roll-back goes back at least so far before the spike
    skip_batches: int = 300
    recurrence_rate_factor: float = 0.8
    most_roll_backs: int = 3  # in a row, each for a spike that followed closely

    @staticmethod
    def of(spec: Spec) -> SpikeRules:
        stated: dict[str, Any] = spec.interventions.get("spikes") or {}
        names = {field.name for field in dataclasses.fields(SpikeRules)}
        given = {key: value for key, value in stated.items() if key in names}
        return SpikeRules(**given | {"policy": OnSpike(given.get("policy", OnSpike.OFF))})

    @property
    def margin_batches(self) -> int:
        """Of those skipped, how many lie before the spike's own: a third, as where 100 of 300 did (PaLM, arXiv 2204.02311, 5.1),
        and no more than are trained again."""
        return min(self.rewind_steps, self.skip_batches // 3)

    @property
    def recurs_within_steps(self) -> int:
        """After a spike that was rolled back: another one so soon is the same trouble again."""
        return self.rewind_steps + self.skip_batches

    @property
    def keeps_back_steps(self) -> int:
        """How far back a checkpoint must be kept for a roll-back that nobody has to ask for; 0: no matter."""
        return self.rewind_steps if self.policy is OnSpike.ROLL_BACK else 0

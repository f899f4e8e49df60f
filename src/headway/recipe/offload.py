"""What of a training lies in host memory while it is not needed, and in which portions it comes back to the device.

    optimizer     moments: brought to their parameters for the update, ``PORTION_BYTES`` at a time
    activations   what blocks keep for their backward pass: brought back in reverse order, ``HELD_BLOCKS`` at a time

Float32 weights stay: shards of them are what ranks gather, and there is no other copy.
"""

from __future__ import annotations

from enum import StrEnum

PORTION_BYTES = 256 * 2**20
"""Of moments that are on the device at once; those of one parameter, if they are more."""
HELD_BLOCKS = 2
"""Whose activations are on the device at once: the one at work, and its neighbour's, on their way."""


class Offload(StrEnum):
    """What lies in host memory; the names are those of the deployment."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    ALL = "all"

    @staticmethod
    def of_record(value: str | bool) -> Offload:
        """As a resolved deployment has it: the first ones had a truth value, which plans alone acted upon."""
        if isinstance(value, bool):
            return Offload.OPTIMIZER if value else Offload.NONE
        return Offload(value)

    @property
    def moments(self) -> bool:
        return self in (Offload.OPTIMIZER, Offload.ALL)

    @property
    def activations(self) -> bool:
        return self in (Offload.ACTIVATIONS, Offload.ALL)


def portion_bytes(total: float, largest: float) -> float:
    """Most bytes of moments on the device, of ``total``; ``largest``: of one parameter."""
    return min(total, max(float(PORTION_BYTES), largest))

"""The engine's model of a rank with sizes alone."""

from __future__ import annotations

from headway.parallel.model import ShardedModel
from headway.parallel.state import LocalParts


class ShapesOnly(ShardedModel):
    """The model of a rank, without memory: nothing is filled."""

    def _initialise(self, seed: int) -> None:
        """There is nothing to fill."""

    def allocate(self) -> None:
        """Under a FakeTensorMode: tensors that have sizes only."""
        self.decoder.to_empty(device="cpu")
        self.parts = LocalParts(self.mesh.stage, self.decoder)

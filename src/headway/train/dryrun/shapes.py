"""The engine's model of a rank with sizes alone."""

from __future__ import annotations

from collections import Counter

from headway.parallel.model import ShardedModel
from headway.parallel.state import LocalParts
from headway.train.dryrun.host import CountedMemory


class ShapesOnly(ShardedModel):
    """The model of a rank, without memory: nothing is filled."""

    memory_type = CountedMemory

    def _initialise(self, seed: int) -> None:
        """There is nothing to fill."""

    def moved(self) -> Counter[str]:
        """Bytes to host memory and back, so far."""
        if self.away is None:
            return Counter()
        assert isinstance(self.away.memory, CountedMemory)
        return Counter({"to host memory": self.away.memory.put_bytes, "back": self.away.memory.fetched_bytes})

    def allocate(self) -> None:
        """Under a FakeTensorMode: tensors that have sizes only."""
        self.decoder.to_empty(device="cpu")
        self.parts = LocalParts(self.mesh.stage, self.decoder)

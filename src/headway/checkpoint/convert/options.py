"""What a conversion is asked for, beside source and destination."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.data.tokenizer import Tokenizer
from headway.recipe.spec import Spec

SHARD_BYTES = 4 << 30


@dataclass(frozen=True, kw_only=True)
class Options:
    """For the writers of all formats; each takes what concerns it."""

    source: Path
    source_format: str
    destination: Path  # its final name
    shard_bytes: int = SHARD_BYTES  # most bytes of tensors in a file, where the format has several
    step: int | None = None  # of a source that does not tell; None: 0
    dtype: str | None = None  # "BF16" or "F32": that of the weights written; None: as they are
    spec: Spec | None = None  # of the run that the source belongs to; None: not known
    tokenizer: Tokenizer | None = None  # of that run

    def describe_source(self) -> dict[str, Any]:
        """For the state of a checkpoint whose source had none."""
        return {"from": self.source_format, "source": self.source.name}

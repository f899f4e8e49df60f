"""Sources -> documents -> token shards -> stream. A position is the whole cursor: (stage, u) -> tokens, by arithmetic."""

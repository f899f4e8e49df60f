"""The Spec: a recipe with every default and derived value filled in, frozen and hashed. No "auto" is left in it.

Everything that runs reads this and never the recipe. Counts are integers in the units that the names say. It is a tree
of frozen dataclasses; ``to_json`` and ``from_json`` are exact inverses, and the digest is of the canonical JSON.

A training stage is made of sequences, not of steps: its ``phases`` say how many sequences a batch holds from which trained
index on, so any step's place follows by arithmetic (``schedules.py``).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from headway.base.digests import digest_json
from headway.base.errors import RunError
from headway.base.plain import from_plain

QUANTA = 65_536
"""Mixture weights are this many parts, always (CONTRACTS section 1)."""


@dataclass(frozen=True)
class TokenizerSpec:
    """``vocabulary`` counts everything the model can see or say, special tokens included."""

    kind: str
    vocabulary: int
    document_token: str  # stands at the head of every document; its id is in the data manifest
    digest: str | None  # None only in a draft, before the data is built


@dataclass(frozen=True)
class ModelSpec:
    """A dense decoder. Widths are per layer and global (before any sharding)."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    ffn_width: int
    vocabulary: int
    rope_base: float
    norm_epsilon: float
    qk_norm: bool
    tied_embeddings: bool
    init_std: float  # of every matrix; residual outputs get init_std / sqrt(2 layers)


@dataclass(frozen=True)
class SourceSpec:
    """One source of the stream, as frozen from the data manifest."""

    name: str
    tokens: int  # n_k
    chunk_tokens: int  # C_k
    target_share: float  # tau_k: target tokens per token
    digest: str | None  # of the source's entry in the manifest (shards, documents); None only in a draft
    cap_epochs: float | None  # None: no cap
    licence: str


@dataclass(frozen=True)
class BatchPhase:
    """From trained index ``first_sequence`` of the stage on, a batch holds ``batch_sequences`` sequences."""

    first_sequence: int
    batch_sequences: int


@dataclass(frozen=True)
class RateSpec:
    """The learning-rate factor over a stage, as a share of the peak: linear ``warmup_tokens`` from 0 to ``start``, then
    ``shape`` from ``start`` to ``end`` over the rest. Shapes: constant, linear, cosine, inverse_sqrt, one_minus_sqrt."""

    warmup_tokens: int
    shape: str
    start: float
    end: float


@dataclass(frozen=True)
class StageSpec:
    """``sequences`` is M_s: whole batches up to the stage's tokens. ``quanta`` is per source and sums to 65,536."""

    name: str
    tokens: int  # as asked; trained are sequences * sequence_length
    sequence_length: int
    sequences: int
    phases: tuple[BatchPhase, ...]
    rate: RateSpec
    quanta: tuple[int, ...]
    rope_base: float
    entry_gates: tuple[dict, ...] = ()
    exit_gates: tuple[dict, ...] = ()


@dataclass(frozen=True)
class OptimizerSpec:
    """AdamW with decoupled decay: w <- w - rate * decay * w. No decay on gains and embeddings."""

    kind: str
    peak_rate: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip_norm: float | None  # None: no clipping


@dataclass(frozen=True)
class StabilitySpec:
    """``z_loss`` weighs mean(logsumexp(logits)^2) over target tokens; 0: none."""

    z_loss: float


@dataclass(frozen=True)
class PrecisionSpec:
    """``compute``: bfloat16 or float32. Master weights and moments are float32."""

    compute: str


@dataclass(frozen=True)
class EvaluationSpec:
    """Held-out loss per source every ``every_tokens`` trained tokens (at the first step boundary at or after)."""

    every_tokens: int
    tokens_per_source: int
    prompts: tuple[str, ...]
    sample_tokens: int


@dataclass(frozen=True)
class Spec:
    """The whole run. ``objective`` and the interventions' policy travel as they were declared."""

    name: str
    seed: int
    data_seed: int
    objective: dict
    tokenizer: TokenizerSpec
    model: ModelSpec
    sources: tuple[SourceSpec, ...]
    stages: tuple[StageSpec, ...]
    optimizer: OptimizerSpec
    stability: StabilitySpec
    precision: PrecisionSpec
    evaluation: EvaluationSpec
    manifest_digest: str | None  # of the data manifest; None only in a draft
    recipe_digest: str
    parent: dict | None = None  # lineage: {run, checkpoint, reason, author} for a branch
    interventions: dict = field(default_factory=dict)  # what may be changed while it runs, by whom
    kind: str = field(default="spec")
    schema_version: int = field(default=1)

    def to_json(self) -> dict:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(value: dict) -> Spec:
        if not isinstance(value, dict) or value.get("kind") != "spec" or value.get("schema_version") != 1:
            raise RunError("not a spec of schema 1", "a spec has kind 'spec' and schema_version 1")
        return from_plain(Spec, value)

    def digest(self) -> str:
        return digest_json(self.to_json())

    @property
    def is_draft(self) -> bool:
        """A draft was resolved before its data was built: it can be planned, not run."""
        return self.manifest_digest is None

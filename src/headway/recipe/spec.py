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


GATED = ("swiglu", "geglu")
"""Feed-forwards with a gate: three matrices."""


@dataclass(frozen=True)
class TokenizerSpec:
    """``vocabulary`` counts everything the model can see or say, special tokens included."""

    kind: str
    vocabulary: int
    document_token: str  # stands at the head of every document; its id is in the data manifest
    digest: str | None  # None only in a draft, before the data is built


@dataclass(frozen=True)
class LatentSpec:
    """Multi-head latent attention: queries, keys and values pass through ranks. Widths are per head.

    A head's keys are ``nope_width`` without positions, from the latent, and ``rope_width`` with RoPE, one for all heads.
    """

    query_rank: int | None  # None: queries are projected directly
    kv_rank: int
    nope_width: int
    rope_width: int
    value_width: int

    @property
    def key_width(self) -> int:
        """Of a head's query and key: what scores are taken over."""
        return self.nope_width + self.rope_width


@dataclass(frozen=True)
class ExpertsSpec:
    """Mixture of experts in place of the feed-forward of some layers: after ``dense_layers``, every ``every``-th one."""

    experts: int
    top_k: int
    width: int  # inner width of one expert
    shared: int = 0  # experts that every token passes, one feed-forward of shared * width
    dense_layers: int = 0
    every: int = 1
    router_bias: bool = False  # one value per expert, for balancing without a loss
    groups: int = 1  # equal parts of the experts, which a layout keeps together on nodes
    groups_per_token: int = 0  # a token's experts lie in at most so many groups; 0: anywhere


@dataclass(frozen=True)
class ModelSpec:
    """A decoder. Widths are per layer and global (before any sharding).

    Under latent attention ``head_width`` is that of a query and key (nope + rope; a value is ``latent.value_width`` wide),
    ``kv_heads`` is ``heads`` (each has keys of its own in training) and ``qk_norm`` is False (the ranks have norms).
    What stands below ``init_std`` came later and is left out of saved objects at its default, so that digests stay.
    """

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
    ffn: str = "swiglu"  # swiglu, geglu: gate, up, down; gelu, relu2: up, down
    norm: str = "rmsnorm"  # rmsnorm, layernorm
    block: str = "pre"  # pre, post: two norms; sandwich: four; parallel: one, parallel-two-norms
    bias: str = "none"  # none; norm: of layernorms; qkv: of these projections; all: of all projections and layernorms
    position: str = "rope"  # rope, learned, none
    positions: int = 0  # learned ones: how many
    qk_norm_over: str = "head"  # head, all: one gain per element of a head, or of all heads
    embedding_norm: bool = False
    window: int | None = None  # tokens that a token sees in layers with a window; None: all before it
    full_attention_every: int = 0  # with a window: every n-th layer sees all before it; 0: none does
    latent: LatentSpec | None = None
    experts: ExpertsSpec | None = None
    mtp_layers: int = 0  # heads that predict further tokens: one block and a projection each
    nominal_parameters: int | None = None  # as people call it: stands for N in 6 N D; None: the exact count

    @property
    def gated(self) -> bool:
        return self.ffn in GATED

    @property
    def value_width(self) -> int:
        """Of a head's value; ``head_width`` is that of its query and key."""
        return self.latent.value_width if self.latent else self.head_width

    def has_experts(self, layer: int) -> bool:
        """Whether layer ``layer`` (from 0) routes; layers of mtp heads are like the last one."""
        return self.experts is not None and layer >= self.experts.dense_layers and self._turn(layer)

    def _turn(self, layer: int) -> bool:
        assert self.experts is not None
        return (layer - self.experts.dense_layers + 1) % self.experts.every == 0

    def is_windowed(self, layer: int) -> bool:
        """Whether layer ``layer`` (from 0) sees only ``window`` tokens."""
        every = self.full_attention_every
        return self.window is not None and (every == 0 or (layer + 1) % every != 0)


ADDED_TO_MODEL = tuple(f.name for f in dataclasses.fields(ModelSpec) if f.default is not dataclasses.MISSING)


@dataclass(frozen=True)
class SourceSpec:
    """One source of the stream, as frozen from the data manifest."""

    name: str
    tokens: int  # n_k; in a draft as declared, 0: not known
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
        plain = dataclasses.asdict(self)
        defaults = {f.name: f.default for f in dataclasses.fields(ModelSpec)}
        plain["model"] = {k: v for k, v in plain["model"].items() if k not in ADDED_TO_MODEL or v != defaults[k]}
        return plain

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

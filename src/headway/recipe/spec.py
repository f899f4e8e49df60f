"""The Spec: a recipe with every default and derived value filled in, frozen and hashed. No "auto" is left in it.

Everything that runs reads this and never the recipe. Counts are integers in the units that the names say. It is a tree
of frozen dataclasses; ``to_json`` and ``from_json`` are exact inverses, and the digest is of the canonical JSON.

A training stage is made of sequences, not of steps: its ``phases`` say how many sequences a batch holds from which trained
index on, so any step's place follows by arithmetic (``schedules.py``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

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
class YarnSpec:
    """YaRN (arXiv 2309.00071): frequencies that turn less than ``slow`` times over ``original`` tokens are divided by ``factor``,
    those that turn more than ``fast`` times stay, with a ramp between; scores grow by (0.1 ln factor + 1)^2."""

    factor: float
    original: int  # tokens that the frequencies were trained for
    fast: float = 32.0
    slow: float = 1.0


@dataclass(frozen=True)
class RopeSpec:
    """How RoPE turns in one stage: a view of the stage's fields."""

    base: float
    yarn: YarnSpec | None = None


@dataclass(frozen=True)
class MupSpec:
    """Maximal update parametrisation: the recipe's numbers are those of a model of ``base_width`` and ``base_layers``, and
    ``mup.py`` says what becomes of them at this one's width and depth."""

    base_width: int
    base_layers: int  # of this model's own depth: no rule in depth
    depth_alpha: float  # residual outputs are multiplied by (layers / base_layers)^-alpha
    attention_multiplier: float  # scores are q k' * this / head width


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
    score: str = "softmax"  # of a router's output: softmax over the experts, sigmoid of each
    normalise: bool = True  # the scores of chosen experts are divided by their sum
    scale: float = 1.0  # of what the chosen experts give together
    bias_rate: float = 0.001  # step of the router's bias per update, with router_bias
    balance_loss: float = 0.0  # weight of the balance of every sequence
    z_loss: float = 0.0  # weight of mean(logsumexp(router output)^2)


@dataclass(frozen=True)
class ModelSpec:
    """A decoder. Widths are per layer and global (before any sharding).

    Under latent attention ``head_width`` is that of a query and key (nope + rope; a value is ``latent.value_width`` wide),
    ``kv_heads`` is ``heads`` (each has keys of its own in training) and ``qk_norm`` is False (the ranks have norms).
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
    init_std: float  # of initial matrices, by ``init``
    ffn: str = "swiglu"  # swiglu, geglu: gate, up, down; gelu, relu2: up, down
    norm: str = "rmsnorm"  # rmsnorm, layernorm
    block: str = "pre"  # pre, post, post-add: two norms; sandwich: four; parallel: one, parallel-two-norms
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
    mtp_weight: float = 0.3  # of the mean loss of the heads for further tokens
    rotary_width: int = 0  # values of a head that RoPE turns, the first ones; 0: all. With latent: rope_width
    yarn: YarnSpec | None = None  # None: plain RoPE; a stage may have another
    nope_every: int = 0  # every n-th layer has no positions; 0: none
    logit_softcap: float | None = None  # c: logits are c tanh(logits / c)
    attention_softcap: float | None = None  # the same of attention's scores
    dropout: float = 0.0  # of the embedding and of what attention and feed-forward add to the stream
    init: str = "depth-scaled"  # fixed, fan-in, depth-scaled
    mup: MupSpec | None = None  # None: the standard parametrisation

    @property
    def gated(self) -> bool:
        return self.ffn in GATED

    @property
    def value_width(self) -> int:
        """Of a head's value; ``head_width`` is that of its query and key."""
        return self.latent.value_width if self.latent else self.head_width

    @property
    def rope(self) -> RopeSpec:
        """Of stages that say nothing else."""
        return RopeSpec(self.rope_base, self.yarn)

    @property
    def turned_width(self) -> int:
        """Values of a head that RoPE turns; 0: there is no RoPE."""
        if self.position != "rope":
            return 0
        return self.latent.rope_width if self.latent else self.rotary_width or self.head_width

    def has_positions(self, layer: int) -> bool:
        """Whether RoPE turns in layer ``layer`` (from 0); layers of mtp heads are like the last one."""
        return self.position == "rope" and (self.nope_every == 0 or (layer + 1) % self.nope_every != 0)

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
    tail_tokens: int = 0  # at the stage's end, which stay at ``end``
    batch_rule: str = "none"  # rate against the stage's largest batch: none; sqrt, linear: times (batch / largest)^1/2 or ^1


@dataclass(frozen=True)
class PackedSpec:
    """How best fit packs one source: a plan of the data directory."""

    bins: tuple[int, ...]  # windows of every chunk, the tail last; none: there is no plan, and no weight in this stage
    target_share: float  # the rest of a window is padding
    digest: str


@dataclass(frozen=True)
class InfillSpec:
    """Fill-in-the-middle of a ``rate`` of documents; of these, ``spm`` have the suffix first."""

    rate: float
    spm: float
    sources: tuple[str, ...]  # empty: all
    tokens: tuple[int, ...]  # ids of prefix, suffix and middle; none in a draft
    seed: int  # that of the data order


@dataclass(frozen=True)
class MixtureRuleSpec:
    """The rule that a stage's mixture was made by, as it was applied (``mixture_rules.py``). Lists go with ``sources``."""

    kind: str  # temperature, quality, unimax
    sources: tuple[str, ...]
    tokens: tuple[int, ...]  # target tokens of one pass; all 0: a draft that knew none, and took all alike
    weights: tuple[float, ...]  # what it gave: shares of target tokens
    temperature: float | None = None
    size_power: float = 1.0  # of quality
    epochs: float | None = None  # of unimax
    scores: tuple[float, ...] = ()  # of quality


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
    yarn: YarnSpec | None = None
    packing: str = "cut"  # cut, best-fit
    packed: tuple[PackedSpec, ...] = ()  # with best-fit: per source; none in a draft
    infill: InfillSpec | None = None
    mixture_rule: MixtureRuleSpec | None = None  # None: weights were given
    asked_quanta: tuple[int, ...] = ()  # before caps moved them; empty: ``quanta`` are as asked

    @property
    def rope(self) -> RopeSpec:
        return RopeSpec(self.rope_base, self.yarn)

    @property
    def windows(self) -> tuple[int, tuple[PackedSpec, ...]]:
        """What windows are: stages that agree in it go on where the one before ended."""
        return self.sequence_length, self.packed

    def target_share(self, source: int, sources: Sequence[SourceSpec]) -> float:
        """Targets per token of windows from source number ``source``."""
        return self.packed[source].target_share if self.packed else sources[source].target_share


@dataclass(frozen=True)
class OptimizerSpec:
    """AdamW with decoupled decay: w <- w - rate * decay * w. No decay on gains and embeddings.

    muon: matrices of the blocks by Muon, the rest by AdamW.
    """

    kind: str
    peak_rate: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip_norm: float | None  # None: no clipping
    matrix_rate: float | None = None  # peak rate of Muon's matrices; None: peak_rate
    momentum: float = 0.95  # of Muon
    muon_scale: str = "rms"  # of Muon's update O: rms: 0.2 sqrt(max(rows, columns)) O; spectral: sqrt(max(1, rows / columns)) O


@dataclass(frozen=True)
class StabilitySpec:
    """``z_loss`` weighs mean(logsumexp(logits)^2) over target tokens; 0: none."""

    z_loss: float
    skip_above: float | None = None  # updates whose gradient norm exceeds the recent one so many times are left out
    most_skips: int = 3  # updates left out in a row that end the run


@dataclass(frozen=True)
class PrecisionSpec:
    """``compute``: bfloat16, float32, or float8 (bfloat16, with projections of blocks multiplied in 8 bits).

    Master weights and moments are float32.
    """

    compute: str
    modules: dict[str, str] = field(default_factory=dict)  # name of a module or a part of its name -> another precision


@dataclass(frozen=True)
class EvaluationSpec:
    """Held-out loss per source every ``every_tokens`` trained tokens (at the first step boundary at or after)."""

    every_tokens: int
    tokens_per_source: int
    prompts: tuple[str, ...]
    sample_tokens: int


def _since(cls: type, first: str) -> frozenset[str]:
    """Names of the fields of ``cls`` from ``first`` on."""
    names = [f.name for f in dataclasses.fields(cls)]
    return frozenset(names[names.index(first) :])


ADDED: dict[type, frozenset[str]] = {
    ModelSpec: _since(ModelSpec, "ffn"),
    ExpertsSpec: _since(ExpertsSpec, "score"),
    StageSpec: _since(StageSpec, "yarn"),
    RateSpec: _since(RateSpec, "tail_tokens"),
    OptimizerSpec: _since(OptimizerSpec, "matrix_rate"),
    StabilitySpec: _since(StabilitySpec, "skip_above"),
    PrecisionSpec: _since(PrecisionSpec, "modules"),
}
"""Fields that came after the first release: left out of saved objects at their default, so that digests stay."""


def _plain(value: Any) -> Any:
    """A tree of dataclasses as JSON, without added fields at their default."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        added = ADDED.get(type(value), frozenset())
        fields = [f for f in dataclasses.fields(value) if f.name not in added or getattr(value, f.name) != _default(f)]
        return {f.name: _plain(getattr(value, f.name)) for f in fields}
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return value


def _default(declared: dataclasses.Field) -> Any:
    return declared.default if declared.default_factory is dataclasses.MISSING else declared.default_factory()


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
        return _plain(self)

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

"""The recipe as people write it: one TOML file that says what a run is.

    kind, schema_version, name, seed
    [objective]      why, what counts, what must hold                 declared, travels with the run
    [tokenizer]      [model]      [optimizer]      [stability]      [precision]      [evaluation]
    [data]           [[data.sources]]                                 where text comes from
    [data.prepare]                                                    what is done to it, in preparation.py
    [[stages]]       tokens, sequence, batch or ramp, rate, mixture   in order
    [interventions]  who may change what while it runs

Strict: unknown keys, wrong types and wrong units are problems, all reported at once (``load.py``). Quantities carry units
("15T", "4M tokens", "30min"). Whatever has no value here gets one in ``resolve.py``. Help texts and reference tables are
made from the descriptions.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headway.recipe.fields import (
    Bytes,
    Day,
    Listed,
    Name,
    Parameters,
    Positive,
    RopeBase,
    Seconds,
    Section,
    Seed,
    Share,
    Some,
    Tokens,
    TokensOrSteps,
    TokensOrZero,
    Version,
    Whole,
    WholeOrZero,
)
from headway.recipe.fields import said as said
from headway.recipe.interventions_section import Interventions as Interventions
from headway.recipe.mixture_section import MixtureRule as MixtureRule
from headway.recipe.preparation import Prepare, StepName
from headway.recipe.tokenizer_keys import Tokenizer

Shape = Literal["constant", "linear", "cosine", "inverse_sqrt", "one_minus_sqrt"]
SourceKind = Literal[
    "text-tree", "code-tree", "jsonl", "parquet", "huggingface", "patches", "python-stdlib", "pydoc-topics", "undisclosed"
]
HeldOutBy = Literal["order", "content", "repository", "time"]

# Far above anything that trains, and low enough that every product of sizes stays exact and every plan ends at once.
LARGEST_WIDTH, LARGEST_HEADS = 2**24, 65_536


# --- objective ----------------------------------------------------------------------------------------------------------


class Capability(Section):
    """Something the model should be good at, and how that is measured."""

    name: Name = said("what the model should be able to do")
    weight: Share = said("share of the whole; all weights sum to 1")
    evaluation: str = said("how it is measured: a source's held-out loss, a task suite", "")


class Alternative(Section):
    """Another way to the objective that was weighed, and why it was or was not taken."""

    option: str = said("what could be done instead")
    verdict: str = said("why it was taken or set aside")


class Objective(Section):
    """Why this run exists and what must hold. Declared before the start, compared with the outcome at the end."""

    why: str = said("the reason for the run, in a sentence", "")
    decision: Literal["train from scratch", "continue", "use existing"] = said(
        "how the model is obtained, decided before anything else", "train from scratch"
    )
    alternatives: Listed[Alternative] = said("other ways that were considered first", ())
    capabilities: Listed[Capability] = said("what counts, with weights that sum to 1; empty: nothing declared", ())
    languages: Listed[str] = said("languages that must work, as BCP 47 tags such as en, de-CH", ())
    context: Tokens | None = said("longest context that users need, tokens; None: not stated", None)
    latency: Seconds | None = said("longest time to answer, per generated token, duration; None: not stated", None)
    memory: Bytes | None = said("memory that serving may take, bytes; None: not stated", None)
    licence: str = said("licence under which the weights will be given away or kept", "")
    hardware: str = said("hardware that the model will be served on", "")
    deadline: Day = said("day by which the model must be ready, as YYYY-MM-DD; empty: none", "")
    hard_constraints: Listed[str] = said("statements that must hold whatever the loss", ())
    acceptable_failure_risk: Share | None = said("accepted probability of no usable model; None: not stated", None)
    privacy: str = said("what may not be in the data or come out of the model", "")
    audit: str = said("what must be provable afterwards, and to whom", "")
    replacement_nodes: str = said("what happens when a node is lost for good: wait, spare, go on with fewer", "")
    checkpoint_every: Seconds | None = said("wish: no more than this much work may be lost, duration; None: not stated", None)
    another_experiment_if: str = said("what result would justify another experiment before the run", "")
    freeze_if: str = said("what evidence is enough to freeze the recipe and start", "")


# --- model --------------------------------------------------------------------------------------------------------------


class Latent(Section):
    """Multi-head latent attention: queries, keys and values pass through ranks. Widths are per head."""

    query_rank: Whole | None = said("rank of the queries; None: projected directly", None, le=LARGEST_WIDTH)
    kv_rank: Whole = said("rank that keys and values share", le=LARGEST_WIDTH)
    nope_width: Whole = said("width of a head's query and key that carries no position", le=LARGEST_WIDTH)
    rope_width: WholeOrZero = said(
        "width with RoPE, one key for all heads, even; 0: none. A head's query and key are nope_width + rope_width wide",
        le=LARGEST_WIDTH,
    )
    value_width: Whole = said("width of a head's value", le=LARGEST_WIDTH)


class Experts(Section):
    """Experts in place of the feed-forward: a router sends every token to top_k of them."""

    experts: Whole = said("routed experts of a layer, at most 65,536", le=LARGEST_HEADS)
    top_k: Whole = said("routed experts that a token passes, at most experts", le=LARGEST_HEADS)
    width: Whole = said("inner width of one expert, at most 2^24", le=LARGEST_WIDTH)
    shared: WholeOrZero = said("experts of that width that every token passes, besides; 0: none", 0, le=LARGEST_HEADS)
    dense_layers: WholeOrZero = said("first layers that keep a feed-forward of ffn_width; 0: none", 0, le=10_000)
    every: Whole = said("after dense_layers, every n-th layer has experts; 1: all", 1, le=10_000)
    router_bias: bool = said("one value per expert beside the router's scores, for balancing without a loss", False)
    groups: Whole = said(
        "equal parts of the experts, a divisor of experts, which a layout keeps together on nodes", 1, le=LARGEST_HEADS
    )
    groups_per_token: WholeOrZero = said("a token's experts lie in at most so many groups; 0: anywhere", 0, le=LARGEST_HEADS)
    score: Literal["softmax", "sigmoid"] = said("scores of the experts: softmax over all of them, sigmoid of each", "softmax")
    normalise: bool = said("scores of the chosen experts are divided by their sum", True)
    scale: Positive = said("factor of what the chosen experts give together, at most 1000", 1.0, le=1000)
    bias_rate: Share = said("with router_bias: step of each expert's value per update, towards equal loads", 0.001)
    balance_loss: Share = said("weight of the loss that balances the experts within every sequence; 0: none", 0.0)
    z_loss: Share = said("weight of mean(logsumexp(router output)^2); 0: none", 0.0)


class Yarn(Section):
    """YaRN: RoPE's slow frequencies are stretched, its fast ones stay."""

    factor: Positive = said("how much longer the context is than original, 1 to 1e6", ge=1, le=1e6)
    original: Tokens = said("tokens that the frequencies were trained for")
    fast: Positive = said("turns over original from which on a frequency stays", 32.0)
    slow: Positive = said("turns over original below which a frequency is divided by factor; less than fast", 1.0)


class Mup(Section):
    """Maximal update parametrisation: rates, initial values, decay and epsilon of this recipe are those of a model of base_width
    (and base_layers), and follow to this one's width and depth by a table (headway mup check)."""

    base_width: Whole = said("width of the model that the recipe's rates and initial values were tuned for", le=LARGEST_WIDTH)
    base_layers: Whole | None = said("its depth; None: as deep as this one, and no rule in depth", None, le=10_000)
    depth_alpha: Positive = said(
        "what blocks add is multiplied by (layers / base_layers)^-alpha; 1: CompleteP, 0.5: rates fall with depth",
        1.0,
        ge=0.5,
        le=1,
    )
    attention_multiplier: Positive = said(
        "attention scores are q k' times this, divided by head width; at most 1e4. The square root of the base's head width "
        "leaves them as they are without mup",
        1.0,
        le=1e4,
    )


class Model(Section):
    """The decoder. Widths are global, before any sharding. Left at their defaults, the keys below init_std describe a dense
    pre-norm decoder: grouped-query attention with RoPE, SwiGLU, no biases."""

    layers: Whole = said("blocks of attention and feed-forward, at most 10,000", le=10_000)
    width: Whole = said("width of the residual stream, at most 2^24", le=LARGEST_WIDTH)
    heads: Whole = said("query heads, at most 65,536", le=LARGEST_HEADS)
    kv_heads: Whole | None = said("key and value heads, a divisor of heads; None: as many as heads", None, le=LARGEST_HEADS)
    head_width: Whole | None = said(
        "width of a head, even with RoPE (it turns pairs); None: width / heads, with latent nope_width + rope_width",
        None,
        le=LARGEST_WIDTH,
    )
    ffn_width: Whole | None = said(
        "inner width of the feed-forward, at most 2^24; None: 8/3 of width, rounded to a multiple of 64 (no gate: 4 x width)",
        None,
        le=LARGEST_WIDTH,
    )
    rope_base: RopeBase = said("base of the RoPE frequencies, 2 to 1e12; a stage may raise it for longer context", 10_000.0)
    norm_epsilon: Positive = said("added to the mean square in norms, 1e-12 to 1: float32 must feel it", 1e-5, ge=1e-12, le=1)
    qk_norm: bool = said(
        "norm on queries and keys: keeps attention logits bounded. With latent its ranks have norms of their own instead", True
    )
    tied_embeddings: bool = said("one matrix for embedding and head", False)
    init_std: Positive = said("standard deviation of initial matrices, 1e-12 to 10, by ``init``", 0.02, ge=1e-12, le=10)
    ffn: Literal["swiglu", "geglu", "gelu", "relu2"] = said(
        "feed-forward: swiglu and geglu have three matrices (gate, up, down), gelu and relu2 two", "swiglu"
    )
    norm: Literal["rmsnorm", "layernorm"] = said("kind of the norms", "rmsnorm")
    block: Literal["pre", "post", "post-add", "sandwich", "parallel", "parallel-two-norms"] = said(
        "norms before attention and feed-forward, on what they give (post), on the stream after it was added (post-add), or "
        "before and on what they give (sandwich: four); parallel: both read the same stream, through one norm or two",
        "pre",
    )
    bias: Literal["none", "norm", "qkv", "all"] = said(
        "biases: of layernorms (norm), of queries, keys and values (qkv), of all projections and layernorms (all)", "none"
    )
    position: Literal["rope", "learned", "none"] = said("positions: RoPE, a learned table, none at all", "rope")
    positions: Whole | None = said("rows of the learned table, tokens; None: there is no table", None, le=2**30)
    qk_norm_over: Literal["head", "all"] = said("one gain per element of a head, or of all heads", "head")
    embedding_norm: bool = said("a norm after the embedding", False)
    window: Whole | None = said("tokens that a token sees in layers with a window, itself included; None: all before it", None)
    full_attention_every: WholeOrZero = said(
        "with a window: every n-th layer sees all before it all the same; 0: none does", 0, le=10_000
    )
    latent: Latent | None = said("latent attention; None: grouped-query attention", None)
    experts: Experts | None = said("mixture of experts; None: dense", None)
    mtp_layers: WholeOrZero = said(
        "heads that predict further tokens while training, a block and a projection each; 0: none", 0, le=100
    )
    mtp_weight: Share = said("weight of the mean loss of these heads", 0.3)
    rotary_share: Share = said("share of a head that RoPE turns, its first values; an even number of them", 1.0, gt=0)
    yarn: Yarn | None = said("RoPE for longer context than trained; None: plain. A stage may have another", None)
    nope_every: WholeOrZero = said("with RoPE: every n-th layer has no positions; 0: all have", 0, le=10_000)
    logit_softcap: Positive | None = said("c: logits are c tanh(logits / c); None: as they are", None, le=1e6)
    attention_softcap: Positive | None = said("c: attention's scores are c tanh(scores / c); None: as they are", None, le=1e6)
    dropout: Share = said(
        "share of values set to 0 in the embedding and in what attention and feed-forward add, below 1; 0: none", 0.0, lt=1
    )
    init: Literal["depth-scaled", "fixed", "fan-in"] = said(
        "initial matrices: init_std, residual outputs / sqrt(2 layers); init_std everywhere; 1 / sqrt(columns), and init_std for "
        "embeddings",
        "depth-scaled",
    )
    mup: Mup | None = said("maximal update parametrisation; None: the standard one", None)
    nominal_parameters: Parameters | None = said(
        'parameters as people call it, such as "400B": N of 6 N D; None: the exact count, of experts the active ones',
        None,
    )


# --- data ---------------------------------------------------------------------------------------------------------------


class Generator(Section):
    """What wrote a synthetic source."""

    program: str = said("program or model", min_length=1)
    version: str = said("its version, commit or digest", "")
    recipe: str = said("digest of prompts, templates and settings that it was run with", "")


class Verifier(Section):
    """What checked a synthetic source, and what it checked."""

    program: str = said("program, model or people", min_length=1)
    version: str = said("its version, commit or digest", "")
    what: str = said('what was verified, such as "the code passes its tests"', "")
    how: str = said("how, and on which share", "")


class Source(Section):
    """A collection of documents."""

    name: Name = said("name used in mixtures, records and reports")
    kind: SourceKind = said(
        "text-tree: files under path; code-tree: source code under path, nothing vendored or generated; jsonl: a document "
        "a line, also .gz and .zst; parquet: a document a row; huggingface: JSONL and Parquet of a data set of the hub; "
        "patches: a patch of .patch, .diff and .mbox files, or a thread with its events a line of .jsonl; "
        "python-stdlib, pydoc-topics: part of Python; "
        "undisclosed: text that this file does not name, to be planned and not built"
    )
    path: str | None = said(
        "directory or file, from the working directory, or a URL such as s3://bucket/text (not code-tree); huggingface: the data "
        "set's name, owner/name; None: the kind knows",
        None,
    )
    include: Listed[str] = said("glob patterns of files to take, relative to path; empty: what the kind takes by default", ())
    exclude: Listed[str] = said("glob patterns of files to leave out, and to count", ())
    field: str = said("key or column that holds the text, for jsonl, parquet, huggingface", "text")
    revision: str | None = said("of a huggingface data set: branch, tag or commit; None: its main branch", None)
    repository_level: WholeOrZero | None = said(
        "of a code-tree: so many directories below path name a repository, 0: path is one; None: wherever a .git lies",
        None,
        le=100,
    )
    licence: str = said("licence of the text", "unknown")
    provenance: str = said("where it came from, when, by whom", "")
    cap_epochs: Positive | None = said("most passes over this source that are allowed; None: no cap", None)
    inventory: Tokens | None = said(
        "unique tokens that there are, as declared, for plans before the data is built; None: not known", None
    )
    synthetic: bool = said("written by a program or model; it then names its generator", False)
    generator: Generator | None = said("who wrote it; None: people", None)
    verifier: Verifier | None = said("who checked what was generated; None: nobody", None)
    without: Listed[StepName] = said("steps of data.prepare that this source does without", ())
    held_out_by: HeldOutBy | None = said("how its held-out documents are chosen; None: as data.held_out_by", None)
    held_out_at: str | None = said(
        "the threshold that decides: for time a time (held out from it on), for content and repository what an earlier build "
        "recorded, such as 0x00a3d70a3d70a3d7; None: found so that data.held_out tokens are reached",
        None,
    )


class Data(Section):
    """Sources and how they are cut. Its manifest digest becomes part of the run's identity."""

    seed: Seed | None = said("seed of the data order; None: the recipe's seed", None)
    held_out: TokensOrZero = said(
        "tokens per source set apart for held-out loss, never trained on; 1M or more where a source has as many", 100_000
    )
    held_out_by: HeldOutBy = said(
        "which: the first documents of the shuffled order; those below a threshold of a hash of their text (content) or of their "
        "repository, whole repositories then; the newest (time). Documents without that fact are trained on, and counted",
        "order",
    )
    chunk: Tokens | None = said("tokens per shuffled chunk of a source; None: 2^floor(log2(tokens / 64)), at most 2^30", None)
    dtype: Literal["auto", "uint16", "uint32"] = said("stored tokens; auto: the smallest type that holds the vocabulary", "auto")
    beyond_cap: Literal["refuse", "rebalance"] = said(
        "stages that would read a source beyond its cap: refuse, or give the rest to the stage's others by their weights",
        "refuse",
    )
    sources: Some[Source] = said("collections of documents, at least one")
    prepare: Prepare | None = said("what is done to documents before they become tokens; None: taken as they are", None)


# --- stages -------------------------------------------------------------------------------------------------------------


class RampPhase(Section):
    """From this many tokens of the stage on, batches are this large."""

    start: TokensOrZero = Field(alias="from", description="tokens of the stage already trained when this phase begins; first 0")
    batch: Tokens = said("tokens per optimizer step, over all replicas")


class Rate(Section):
    """The learning-rate factor over a stage: a linear warm-up from 0 to ``start``, then ``shape`` down to ``end``."""

    warmup: TokensOrSteps = said('tokens (or "2000 steps") of linear warm-up at the head of the stage; 0: none', 0)
    shape: Shape = said("curve after the warm-up", "constant")
    start: Positive = said("share of the peak rate after the warm-up, at most 10", 1.0, le=10)
    end: Annotated[float, Field(ge=0, le=10)] | None = said(
        "share of the peak at the stage's end, at most 10; None: start if constant, else 0", None
    )
    tail: TokensOrSteps = said('tokens (or "2000 steps") at the stage\'s end that stay at end; 0: none', 0)
    batch_rule: Literal["none", "sqrt", "linear"] = said(
        "in a batch ramp, the rate against the stage's largest batch: as it is, by the root of the batch, by the batch", "none"
    )


class Infill(Section):
    """Fill-in-the-middle: a share of documents as prefix, suffix, middle, behind control tokens (arXiv 2207.14255). A part of a
    document that a window holds is one document here; it gives its last three tokens for the control tokens."""

    rate: Share = said("share of documents, 0 to 1")
    spm: Share = said("of these, the share with the suffix before prefix and middle", 0.5)
    sources: Listed[Name] = said("of these sources only; empty: of all", ())


class Gate(Section):
    """A condition to pass, fixed before its result is known. Declared here and carried with the run."""

    name: Name = said("what the gate guards")
    metric: str = said("what is measured")
    comparison: Literal["<", "<=", ">", ">="] = said("how the metric must stand to the threshold")
    threshold: float = said("value, in the metric's own unit")
    deadline: str = said("by when it must be measured; empty: at the boundary", "")
    unresolved: Listed[str] = said("assumptions that stay open even when it passes", ())


class Stage(Section):
    """A part of the run with one sequence length, one mixture and one rate curve."""

    name: Name = said("name used in records and layouts")
    tokens: Tokens = said("tokens to train; whole batches are added until they reach it")
    sequence: Annotated[int, Field(ge=2, le=2**30)] = said("tokens per sequence, 2 to 2^30")
    batch: Tokens | None = said("tokens per optimizer step, over all replicas; None: see ramp", None)
    ramp: Listed[RampPhase] = said("batch sizes in phases, instead of batch", ())
    rate: Rate = said("learning-rate curve of the stage; left out: constant at the peak", Rate())
    mixture: dict[str, Annotated[float, Field(ge=0)]] = said(
        "source -> weight, as shares of target tokens; any scale; empty: mixture_rule says", {}
    )
    mixture_rule: MixtureRule | None = said("weights by a rule, in place of mixture; None: mixture has them", None)
    rope_base: RopeBase | None = said("base of the RoPE frequencies in this stage, 2 to 1e12; None: as the stage before", None)
    yarn: Yarn | None = said("YaRN in this stage; None: as the stage before (factor = 1: none any more)", None)
    packing: Literal["cut", "best-fit"] = said(
        "how documents fill sequences: one behind the other and cut where a sequence ends, or whole (only what is longer is cut) "
        "by a plan that the build makes, with padding that is no target",
        "cut",
    )
    infill: Infill | None = said("fill-in-the-middle; None: documents as they are", None)
    entry_gates: Listed[Gate] = said("conditions to start the stage", ())
    exit_gates: Listed[Gate] = said("conditions to leave the stage", ())


# --- optimizer and the rest ---------------------------------------------------------------------------------------------


class Optimizer(Section):
    """AdamW with decoupled decay, or Muon on the matrices of the blocks and AdamW on the rest. No decay on gains, embeddings."""

    kind: Literal["adamw", "muon"] = said("the update rule", "adamw")
    peak_rate: Positive = said("learning rate where a stage's factor is 1; 1e-30 or more, less is 0 in float32", ge=1e-30, lt=1)
    beta1: Share = said("decay of the first moment, below 1", 0.9, lt=1)
    beta2: Share = said("decay of the second moment, below 1; .95 forgets in 20 steps, .999 in 1,000", 0.95, lt=1)
    epsilon: Positive = said("added to the root of the second moment, 1e-30 to 1: less is 0 in float32", 1e-8, ge=1e-30, le=1)
    weight_decay: Annotated[float, Field(ge=0)] = said(
        "decoupled decay of matrices, times the learning rate, at most 10", 0.1, le=10
    )
    clip_norm: Annotated[float, Field(ge=0)] = said("largest global gradient norm, larger ones are scaled; 0: no clipping", 1.0)
    matrix_rate: Positive | None = said("peak rate of the matrices under muon; None: peak_rate", None, ge=1e-30, lt=100)
    momentum: Share = said("of muon, below 1", 0.95, lt=1)
    muon_scale: Literal["rms", "spectral"] = said(
        "size of muon's updates: of a root mean square of 0.2, so that AdamW's rates fit, or of a spectral norm of "
        "sqrt(max(1, rows / columns))",
        "rms",
    )


class Stability(Section):
    """Measures against divergence."""

    z_loss: Annotated[float, Field(ge=0)] = said("weight of mean(logsumexp(logits)^2), at most 1; 0: none", 1e-4, le=1)
    skip_above: Positive | None = said(
        "an update whose gradient norm is so many times the recent one is left out, more than 1; None: only if not finite",
        None,
        gt=1,
    )
    most_skips: Whole = said("updates left out in a row that end the run", 3, le=10_000)


class Precision(Section):
    """Arithmetic of forward and backward; master weights and moments are float32."""

    compute: Literal["bfloat16", "float32", "float8"] = said(
        "type of matrix products; float8: projections of blocks in 8 bits, the rest in bfloat16; needs the float8 extra",
        "bfloat16",
    )
    modules: dict[str, Literal["bfloat16", "float32", "float8"]] = said(
        'modules computed in another type, by name or a part of it such as "layers.0", "router", "head"', {}
    )


class Evaluation(Section):
    """What is measured on the way."""

    every: Tokens = said("trained tokens between two held-out evaluations")
    tokens_per_source: Tokens = said("held-out tokens scored per source, at most", 20_000)
    prompts: Listed[str] = said("texts decoded greedily before the first step and after the last", ())
    sample_tokens: WholeOrZero = said("tokens decoded per prompt, at most 65,536; 0: none", 32, le=65_536)


class Recipe(Section):
    """What a run is, as written. Everything that changes its mathematics stands here; nothing else does."""

    kind: Literal["recipe"] = said("says that this file is a recipe")
    schema_version: Version = said("version of this format", 1)
    name: Name = said("name of the run")
    seed: Seed = said("seed of initialisation and, unless data.seed is given, of the data order", 0)
    objective: Objective = said("why, and what must hold", Objective())
    tokenizer: Tokenizer = said("how text becomes tokens")
    model: Model = said("the decoder")
    data: Data = said("where text comes from")
    stages: Some[Stage] = said("parts of the run, in order; at least one")
    optimizer: Optimizer = said("the update rule")
    stability: Stability = said("measures against divergence", Stability())
    precision: Precision = said("arithmetic", Precision())
    evaluation: Evaluation = said("what is measured on the way")
    interventions: Interventions = said("what may be changed while it runs, by whom", Interventions())

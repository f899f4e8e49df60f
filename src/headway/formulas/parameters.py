"""Parameters of the decoder, by component, counted from the same list of shapes that the model is built from.

embedding   V D             tokens looked up; tied, it is the head too      positions   a learned table
attention   matrices        of queries, keys, values and output, or of the latent ranks
ffn         matrices        that every token passes: feed-forwards and shared experts
experts     matrices        of routed experts, all that are stored; ``idle_experts`` of them a token does not pass
router      matrices        that choose
gains       norms           biases      of projections, norms and routers   head        V D, 0 when tied
mtp         all of the heads for further tokens; they share embedding and head

total   as published: without mtp           stored   with mtp: what training holds, moves and saves
active  of one token: total without idle experts; embeddings count as a whole
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from headway.formulas.parameter_formulas import component_formulas, letters_of
from headway.formulas.quantity import Input, Quantity
from headway.recipe.roles import ParameterShape, Role, block_shapes, input_shapes, mtp_shapes, output_shapes
from headway.recipe.spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class ParameterCount:
    """Counts by component, as drawn above. What stands at 0 by default is only found in some architectures."""

    embedding: int
    attention: int
    ffn: int
    gains: int
    head: int
    positions: int = 0
    experts: int = 0
    idle_experts: int = 0
    router: int = 0
    biases: int = 0
    idle_biases: int = 0  # of idle experts
    mtp: int = 0
    mtp_products: int = 0  # of mtp: matrices that a token passes, the head once more for each

    @property
    def total(self) -> int:
        """As published: everything but the heads for further tokens."""
        inside = self.attention + self.ffn + self.experts + self.router + self.gains + self.biases
        return self.embedding + self.positions + inside + self.head

    @property
    def stored(self) -> int:
        """What training holds in memory and in checkpoints."""
        return self.total + self.mtp

    @property
    def non_embedding(self) -> int:
        """Without embeddings and head."""
        return self.total - self.embedding - self.positions - self.head

    @property
    def active(self) -> int:
        """Of one token, both embeddings included."""
        return self.total - self.idle_experts - self.idle_biases

    @property
    def active_without_input_embedding(self) -> int:
        """Of one token, without what is only looked up: a tied embedding stays, it is the head."""
        return self.active - self.positions - (self.embedding if self.head else 0)

    @property
    def in_products(self) -> int:
        """Stored matrices, mtp left out: the head (or the tied embedding used as one), no gains, biases or look-ups."""
        return self.attention + self.ffn + self.experts + self.router + (self.head or self.embedding)

    @property
    def active_in_products(self) -> int:
        """Matrices that a token is multiplied with in training: ``P`` of the FLOPs formulas, with mtp."""
        return self.in_products - self.idle_experts + self.mtp_products


@lru_cache(maxsize=256)
def count_parameters(model: ModelSpec) -> ParameterCount:
    """Exact counts of ``model``. Layers are counted once per kind, so that depth costs nothing."""
    routed = sum(model.has_experts(layer) for layer in range(model.layers))
    parts = Counter(embedding=0, attention=0, ffn=0, gains=0, head=0)
    for shapes, times in (
        (input_shapes(model), 1),
        (output_shapes(model), 1),
        (block_shapes(model, "layers.", False) if routed < model.layers else [], model.layers - routed),
        (block_shapes(model, "layers.", True) if routed else [], routed),
    ):
        for shape in shapes:
            parts[_component(shape)] += times * shape.count
    idle = {"idle_experts": _idle(model, parts["experts"]), "idle_biases": _idle(model, parts["expert_biases"])}
    parts["biases"] += parts.pop("expert_biases", 0)
    return ParameterCount(**parts, **idle, **_count_mtp(model))


def _component(shape: ParameterShape) -> str:
    name = shape.name
    if shape.role in (Role.BIAS, Role.BALANCE):
        return "expert_biases" if ".experts." in name else "biases"
    if shape.role is Role.GAIN:
        return "gains"
    if shape.role in (Role.EMBEDDING, Role.HEAD):
        return "positions" if name.startswith("positions") else shape.role.value
    kinds = {".attention.": "attention", ".experts.": "experts", ".router.": "router"}
    return next((part for mark, part in kinds.items() if mark in name), "ffn")


def _idle(model: ModelSpec, stored: int) -> int:
    """Of ``stored`` parameters of routed experts, those of experts that a token does not pass."""
    return stored * (model.experts.experts - model.experts.top_k) // model.experts.experts if model.experts else 0


def _count_mtp(model: ModelSpec) -> dict[str, int]:
    if not model.mtp_layers:
        return {"mtp": 0}
    parts: Counter[str] = Counter()
    for shape in mtp_shapes(model, "mtp."):
        parts[_component(shape) if shape.role not in (Role.GAIN, Role.BIAS, Role.BALANCE) else "others"] += shape.count
    head = model.vocabulary * model.width
    products = sum(parts.values()) - parts["others"] - _idle(model, parts["experts"]) + head
    each = {"mtp": sum(parts.values()), "mtp_products": products}
    return {key: model.mtp_layers * value for key, value in each.items()}


def parameters_in_6n(model: ModelSpec) -> int:
    """N of 6 N D: as people call the model, else what a token passes with both embeddings (dense: everything)."""
    return model.nominal_parameters or count_parameters(model).active


# --- as quantities ------------------------------------------------------------------------------------------------------

SOURCE = "shapes of the parameters, by role"
_NAMES = {"experts": "expert_parameters", "gains": "gain_parameters", "biases": "bias_parameters"}
_NAMES |= {"positions": "position_parameters", "idle_experts": "idle_expert_parameters", "idle_biases": "idle_bias_parameters"}


def parameter_quantities(model: ModelSpec) -> dict[str, Quantity]:
    """Every component (beyond embedding, attention, ffn, gains and head only where it is found), and the sums.

    Sums: total, stored, non_embedding, active, active_without_input_embedding; products, P of the FLOPs formulas; in_6n, N.
    """
    count, letters = count_parameters(model), letters_of(model)
    parts = {}
    for part, formula in component_formulas(model).items():
        inputs = {name: letters[name] for name in _words(formula) if name in letters}
        parts[part] = _exact(_NAMES.get(part, f"{part}_parameters"), getattr(count, part), formula, inputs)
    return parts | _sums(model, count, parts)


def _exact(name: str, value: int, formula: str, inputs: Mapping[str, Input]) -> Quantity:
    return Quantity(name, value, "parameters", formula, inputs, SOURCE)


def _words(formula: str) -> list[str]:
    return list(dict.fromkeys(re.findall("[A-Za-z_]+", formula)))


def _sums(model: ModelSpec, count: ParameterCount, parts: dict[str, Quantity]) -> dict[str, Quantity]:
    """Sums in terms of components, and of each other."""
    known = dict(parts)

    def add(key: str, name: str, value: int, formula: str) -> Quantity:
        known[name] = _exact(name, value, formula, {word: known[word] for word in _words(formula) if word in known})
        sums[key] = known[name]
        return known[name]

    sums: dict[str, Quantity] = {}
    idle = [name for name in ("idle_experts", "idle_biases") if name in parts]
    outer = [name for name in ("embedding", "positions", "head") if name in parts]
    looked_up = [name for name in outer if name == "positions" or (name == "embedding" and count.head)]
    matrices = ["attention", "ffn", *(n for n in ("experts", "router") if n in parts), "head" if count.head else "embedding"]
    add("total", "parameters", count.total, " + ".join(name for name in parts if name not in (*idle, "mtp")))
    add("stored", "stored_parameters", count.stored, "parameters + mtp" if count.mtp else "parameters")
    add("non_embedding", "non_embedding_parameters", count.non_embedding, " - ".join(["parameters", *outer]))
    active = add("active", "active_parameters", count.active, " - ".join(["parameters", *idle]))
    add(
        "active_without_input_embedding",
        "active_parameters_without_input_embedding",
        count.active_without_input_embedding,
        " - ".join(["active_parameters", *looked_up]),
    )
    products = " + ".join(matrices) + (" - idle_experts" if idle else "")
    if count.mtp:
        known["further"] = _further(model, count)
        products += " + further"
    add("products", "product_parameters", count.active_in_products, products)
    sums["in_6n"] = sums["total"] if active.value == count.total else active
    if model.nominal_parameters:
        sums["in_6n"] = _exact("nominal_parameters", model.nominal_parameters, "as the model is called", {})
    return sums


def _further(model: ModelSpec, count: ParameterCount) -> Quantity:
    """Matrices of the heads for further tokens that a token passes."""
    each = count.mtp_products // model.mtp_layers - model.vocabulary * model.width
    inputs = {"M": model.mtp_layers, "A": each, "V": model.vocabulary, "D": model.width}
    formula = "M (A + V D)"  # A: matrices of one block and of its projection; the head is used again
    return _exact("further_product_parameters", count.mtp_products, formula, inputs)

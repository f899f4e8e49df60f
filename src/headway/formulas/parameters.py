"""Parameters of the decoder, by component, counted from the same list of shapes that the model is built from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from headway.formulas.quantity import Quantity
from headway.recipe.roles import Role, parameter_shapes
from headway.recipe.spec import ModelSpec

SOURCE = "recipe.roles.parameter_shapes"


@dataclass(frozen=True)
class ParameterCount:
    """Counts by component. ``head`` is 0 when it shares the embedding's matrix."""

    embedding: int
    attention: int
    ffn: int
    gains: int
    head: int

    @property
    def total(self) -> int:
        return self.embedding + self.attention + self.ffn + self.gains + self.head

    @property
    def non_embedding(self) -> int:
        """Without the token embedding and the head."""
        return self.attention + self.ffn + self.gains

    @property
    def in_products(self) -> int:
        """Parameters of matrix products: the head (or the tied embedding used as one), no gains, no look-up."""
        return self.attention + self.ffn + (self.head or self.embedding)


@lru_cache(maxsize=64)
def count_parameters(model: ModelSpec) -> ParameterCount:
    """Exact counts of ``model``."""
    parts = {"embedding": 0, "attention": 0, "ffn": 0, "gains": 0, "head": 0}
    for parameter in parameter_shapes(model):
        parts[_component(parameter.name, parameter.role)] += parameter.count
    return ParameterCount(**parts)


def _component(name: str, role: Role) -> str:
    if role is Role.GAIN:
        return "gains"
    if role in (Role.EMBEDDING, Role.HEAD):
        return role.value
    return "attention" if ".attention." in name else "ffn"


def parameter_quantities(model: ModelSpec) -> dict[str, Quantity]:
    """Every component as a quantity, and the sums."""
    count = count_parameters(model)
    D, F, V, L = model.width, model.ffn_width, model.vocabulary, model.layers
    H, K, E = model.heads, model.kv_heads, model.head_width

    def exact(name: str, value: int, formula: str, **inputs: Quantity | int) -> Quantity:
        return Quantity(name, value, "parameters", formula, inputs, SOURCE)

    parts = {
        "embedding": exact("embedding_parameters", count.embedding, "V D", V=V, D=D),
        "attention": exact("attention_parameters", count.attention, "L (2 D H E + 2 D K E)", L=L, D=D, H=H, K=K, E=E),
        "ffn": exact("ffn_parameters", count.ffn, "3 L D F (gate, up, down)", L=L, D=D, F=F),
        "gains": exact(
            "gain_parameters",
            count.gains,
            "D + L (2 D + 2 E)" if model.qk_norm else "D + 2 L D",
            D=D,
            L=L,
            **({"E": E} if model.qk_norm else {}),
        ),
        "head": exact("head_parameters", count.head, "0: shares the embedding" if model.tied_embeddings else "V D", V=V, D=D),
    }
    names = {quantity.name: quantity for quantity in parts.values()}
    total = exact("parameters", count.total, "sum of the components", **names)
    inner = exact("non_embedding_parameters", count.non_embedding, "total without embedding and head", parameters=total)
    products = exact(
        "product_parameters", count.in_products, "parameters in matrix products: no gains, no look-up", parameters=total
    )
    return parts | {"total": total, "non_embedding": inner, "products": products}

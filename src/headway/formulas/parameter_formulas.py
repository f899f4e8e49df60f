"""What each component of a decoder counts, in letters: the text beside a number, for every architecture.

    L layers (Ld dense, Lx with experts)   D width   V vocabulary   T rows of learned positions   M heads for further tokens
    H heads   K key and value heads   E head width   Rq Rkv latent ranks   En Er Ev widths without and with RoPE, of values
    F feed-forward width   X experts   k of them chosen   Sx shared ones   Fx width of one   B a block and three norms

Letters side by side are multiplied. The counts themselves come from the shapes (``parameters.py``); tests compute these
formulas and compare.
"""

from __future__ import annotations

from headway.recipe.roles import count_norms, mtp_shapes
from headway.recipe.spec import ModelSpec


def component_formulas(model: ModelSpec) -> dict[str, str]:
    """Of the components that the architecture has; always of embedding, attention, gains, ffn and head."""
    found = {"embedding": "V D", "attention": _attention(model), "ffn": _ffn(model), "gains": _gains(model)}
    found |= {"head": "0: shares the embedding" if model.tied_embeddings else "V D"}
    if model.experts and routed_layers(model):
        G = 3 if model.gated else 2
        found |= {"experts": f"{G} Lx X D Fx", "idle_experts": f"{G} Lx (X - k) D Fx", "router": "Lx X D"}
        found |= {"idle_biases": f"Lx (X - k) ({_gates(model)}Fx + D)"} if model.bias == "all" else {}
    found |= {"positions": "T D"} if model.position == "learned" else {}
    found |= {"biases": biases} if (biases := _biases(model)) else {}
    return found | ({"mtp": "M (2 D D + B)"} if model.mtp_layers else {})


def routed_layers(model: ModelSpec) -> int:
    """Layers with experts, mtp left out."""
    return sum(model.has_experts(layer) for layer in range(model.layers)) if model.experts else 0


def letters_of(model: ModelSpec) -> dict[str, int]:
    """What the letters stand for."""
    routed = routed_layers(model)
    found = {"L": model.layers, "Ld": model.layers - routed, "Lx": routed, "D": model.width, "F": model.ffn_width}
    found |= {"V": model.vocabulary, "T": model.positions, "H": model.heads, "K": model.kv_heads, "E": model.head_width}
    if latent := model.latent:
        found |= {"Rq": latent.query_rank or 0, "Rkv": latent.kv_rank}
        found |= {"En": latent.nope_width, "Er": latent.rope_width, "Ev": latent.value_width}
    if experts := model.experts:
        found |= {"X": experts.experts, "k": experts.top_k, "Sx": experts.shared, "Fx": experts.width}
    if model.mtp_layers:
        whole = sum(shape.count for shape in mtp_shapes(model, "mtp."))
        found |= {"M": model.mtp_layers, "B": whole - 2 * model.width**2}
    return found


def _attention(model: ModelSpec) -> str:
    if not model.latent:
        return "L (2 D H E + 2 D K E)"
    queries = "D Rq + Rq H (En + Er)" if model.latent.query_rank else "D H (En + Er)"
    return f"L ({queries} + D (Rkv + Er) + Rkv H (En + Ev) + H Ev D)"


def _ffn(model: ModelSpec) -> str:
    """Three matrices with a gate, two without; shared experts are one feed-forward."""
    G, routed = 3 if model.gated else 2, routed_layers(model)
    if not routed:
        return f"{G} L D F"
    terms = [f"{G} Ld D F"] if routed < model.layers else []
    terms += [f"{G} Lx D Sx Fx"] if model.experts and model.experts.shared else []
    return " + ".join(terms) or "0: every layer has experts"


def _gains(model: ModelSpec) -> str:
    inner = ""
    if model.latent:
        inner = " + Rq + Rkv" if model.latent.query_rank else " + Rkv"
    elif model.qk_norm:
        inner = " + 2 E" if model.qk_norm_over == "head" else " + H E + K E"
    return f"{_outer_norms(model)} + L ({count_norms(model)} D{inner})"


def _outer_norms(model: ModelSpec) -> str:
    return "2 D" if model.embedding_norm else "D"


def _gates(model: ModelSpec) -> str:
    return "2 " if model.gated else ""


def _biases(model: ModelSpec) -> str:
    """In the order norms, attention, feed-forwards, shared experts, routers, experts; empty: there are none."""
    every, routed, gates = model.bias == "all", routed_layers(model), _gates(model)
    terms = []
    if model.norm == "layernorm" and model.bias in ("norm", "all"):
        terms.append(f"{_outer_norms(model)} + L {count_norms(model)} D")
    if model.bias in ("qkv", "all") and not model.latent:
        terms.append("L (H E + 2 K E + D)" if every else "L (H E + 2 K E)")
    if every and routed < model.layers:
        terms.append(f"Ld ({gates}F + D)" if routed else f"L ({gates}F + D)")
    if model.experts and routed:
        terms += [f"Lx ({gates}Sx Fx + D)"] if every and model.experts.shared else []
        terms += ["Lx X"] if every or model.experts.router_bias else []
        terms += [f"Lx X ({gates}Fx + D)"] if every else []
    return " + ".join(terms)

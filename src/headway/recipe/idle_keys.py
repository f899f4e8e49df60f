"""Keys that nothing reads while another key stands as it does: one table.

    optimizer.momentum    kind = "muon"      beside "adamw" it is refused, and the way out named
    model.rope_base       position = "rope"

A key at its default says nothing anywhere and is let through, so that a recipe may spell out all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.recipe.findings import Finding, found
from headway.recipe.lines import KeyPath

if TYPE_CHECKING:
    from headway.recipe.fields import Section


@dataclass(frozen=True)
class Idle:
    """``key`` is read while ``holds`` is true of ``other``, a key of the same section. ``choose``: such a value."""

    section: KeyPath
    key: str
    other: str
    holds: Callable[[Any], bool]
    choose: str
    rule: str


def _is(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


def _given(value: Any) -> bool:
    return value is not None


_TOKENIZER, _OPTIMIZER, _MODEL, _EXPERTS = ("tokenizer",), ("optimizer",), ("model",), ("model", "experts")
_SPIKES = ("interventions", "spikes")
_MUON, _ROPE = _is("muon"), _is("rope")
_NO_ROPE = "it shapes RoPE, and this model has none"

_BPE, _FILE = _is("bpe"), _is("file")
_TRAINED, _BROUGHT = "it shapes what is trained, and a file brings its own", "it is of a tokenizer that is brought"

TABLE = (
    *(Idle(_TOKENIZER, key, "kind", _BPE, 'kind = "bpe"', _TRAINED) for key in ("digits", "whitespace", "sample")),
    *(Idle(_TOKENIZER, key, "kind", _FILE, 'kind = "file"', _BROUGHT) for key in ("path", "pattern", "special", "lossy")),
    Idle(_OPTIMIZER, "matrix_rate", "kind", _MUON, 'kind = "muon"', "it is the rate of the matrices that Muon takes"),
    Idle(_OPTIMIZER, "momentum", "kind", _MUON, 'kind = "muon"', "it is Muon's; AdamW has beta1"),
    Idle(_OPTIMIZER, "muon_scale", "kind", _MUON, 'kind = "muon"', "it is the size of Muon's updates"),
    Idle(_MODEL, "mtp_weight", "mtp_layers", bool, "mtp_layers = 1", "it weighs the loss of heads for further tokens"),
    Idle(_MODEL, "qk_norm_over", "qk_norm", bool, "qk_norm = true", "it says over what queries and keys are normed"),
    Idle(_MODEL, "qk_norm_over", "latent", _is(None), "no latent", "the ranks of latent attention have norms of their own"),
    Idle(_MODEL, "rope_base", "position", _ROPE, 'position = "rope"', _NO_ROPE),
    Idle(_MODEL, "rotary_share", "position", _ROPE, 'position = "rope"', _NO_ROPE),
    Idle(_MODEL, "rotary_share", "latent", _is(None), "no latent", "latent attention says by rope_width what RoPE turns"),
    Idle(_MODEL, "nope_every", "position", _ROPE, 'position = "rope"', _NO_ROPE),
    Idle(_MODEL, "full_attention_every", "window", _given, "a window", "without a window every layer sees all before a token"),
    Idle(_SPIKES, "most_roll_backs", "policy", _is("roll_back"), 'policy = "roll_back"', "it counts roll-backs"),
    Idle(_EXPERTS, "bias_rate", "router_bias", bool, "router_bias = true", "it moves the router's bias, and there is none"),
)


def check_idle(at: KeyPath, section: Section) -> Iterator[Finding]:
    """Keys of the section at ``at`` that differ from their default and change nothing."""
    for row in TABLE:
        value, other = (getattr(section, key, None) for key in (row.key, row.other))
        if row.section != at or value == type(section).model_fields[row.key].default or row.holds(other):
            continue
        yield found(
            (*at, row.key),
            f"{row.key} = {_shown(value)} {_beside(row.other, other)}",
            row.rule,
            f"remove {row.key}, or choose {row.choose}",
        )


def _shown(value: Any) -> str:
    """As a recipe writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, int | float) else repr(value)


def _beside(key: str, value: Any) -> str:
    if value is None:
        return f"without {key}"
    return f"beside {key} = {_shown(value)}" if isinstance(value, str | int) else f"beside {key}"

"""Which architecture of ``transformers`` computes what our decoder computes, its names, its configuration, and the way back.

    spec of a run ----choose----> family ----links----> theirs from ours, ours from theirs     (steps.py, names.py)
                                         ----write----> config.json                            (settings.py, families.py)
    config.json   ----recognise-> family, ModelSpec                                            (reading.py)

A model that no family computes is refused, and the options that stand in the way are named. Both sides rotate the same pairs, or
rows are permuted. Multipliers of muP are folded into the weights first.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from headway.base.errors import Problem, RunError
from headway.checkpoint.convert.architectures.families import FAMILIES, Family
from headway.checkpoint.convert.architectures.names import links, renamed, renamed_back
from headway.checkpoint.convert.architectures.reading import recognise
from headway.checkpoint.convert.architectures.steps import Affine, Each, Link
from headway.checkpoint.convert.contents import Kind
from headway.checkpoint.convert.views import Outline
from headway.model.fold import fold_factor
from headway.recipe.roles import parameter_shapes
from headway.recipe.schedules import Schedule
from headway.recipe.spec import ModelSpec, Spec, StageSpec

PARAM = "param/"

__all__ = [
    "PARAM",
    "Chosen",
    "check_fits",
    "choose",
    "configuration",
    "folded",
    "model_at",
    "our_name",
    "read_configuration",
    "stage_of",
    "their_name",
]


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A family and a model that it computes."""

    family: Family
    model: ModelSpec

    def links(self) -> list[Link]:
        """From all parameters of ``model``; without "param/"."""
        return links(self.model, self.family.names(self.model))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all their tensors."""
        ours = {p.name: Outline(Kind(dtype="F32", shape=p.shape)) for p in parameter_shapes(self.model)}
        exported = [link.export(tuple(ours[name] for name in link.ours)) for link in self.links()]
        return {name: view.kind.shape for views in exported for name, view in views.items()}

    def duplicate(self, name: str) -> str | None:
        """The end of a name that files may hold besides, and that follows from others; None: it is no such name."""
        names = self.family.names(self.model)
        if self.model.tied_embeddings and names.aliases.get(name, name) == names.top["head"] + ".weight":
            return name
        found = next(filter(None, (re.fullmatch(pattern, name) for pattern in names.duplicates)), None)
        return None if found is None else "." + found.group(1)

    def our_alias(self, name: str, all_names: Collection[str]) -> str:
        """The name under which ``links`` knows a tensor: files may leave out the prefix of the inner model."""
        names = self.family.names(self.model)
        prefix = names.layers.partition(".")[0] + "."
        bare = not any(other.startswith(prefix) for other in all_names)
        return prefix + name if bare and name not in names.aliases else names.aliases.get(name, name)


def choose(model: ModelSpec) -> Chosen:
    """The first family that computes the model; RunError names what the nearest one does not compute."""
    unmet = [(family, family.unmet(replace(model, mup=None))) for family in FAMILIES]
    family, wrong = min(unmet, key=lambda pair: ("latent" in pair[1], "experts" in pair[1], len(pair[1])))
    if wrong:
        rule = f"an export is a model that transformers computes; the nearest known one is {family.causal}"
        raise RunError(
            [Problem(f"{text} has no place there", rule, "export it as safetensors or dcp") for text in wrong.values()]
        )
    return Chosen(family=family, model=model)


def folded(all_links: list[Link], model: ModelSpec) -> list[Link]:
    """The same links with the multipliers of muP taken into the weights first (``model/fold.py``)."""
    if model.mup is None:
        return all_links
    return [_folded(link, tuple(fold_factor(name, model) for name in link.ours)) for link in all_links]


def _folded(link: Link, factors: tuple[float, ...]) -> Link:
    return link if set(factors) == {1.0} else replace(link, steps=(Each(tuple(map(Affine, factors))), *link.steps))


def their_name(name: str) -> str | None:
    """``param/layers.3.ffn.up.weight`` -> ``model.layers.3.mlp.up_proj.weight``, as Llama and Qwen3 have it; None: no place."""
    return renamed(name.removeprefix(PARAM)) if name.startswith(PARAM) else None


def our_name(name: str) -> str | None:
    """The way back."""
    inner = renamed_back(name)
    return None if inner is None else PARAM + inner


def check_fits(tensors: dict[str, Kind], model: ModelSpec) -> None:
    """RunError unless the parameters are exactly those of the model."""
    wanted = {PARAM + p.name: p.shape for p in parameter_shapes(model)}
    found = {name: kind.shape for name, kind in tensors.items() if name.startswith(PARAM)}
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong:
        rule = "the parameters are those that the run's spec describes"
        raise RunError(
            [
                Problem(f"{n}: {found.get(n, 'missing')}, by the spec {wanted.get(n, 'none')}", rule, "use the run's own")
                for n in wrong
            ]
        )


def stage_of(spec: Spec, step: int) -> StageSpec:
    """The stage that the last trained step belongs to: its RoPE and sequence length are those of the weights."""
    schedule = Schedule(spec)
    if step > schedule.total_steps:
        raise RunError(f"step {step}", f"the run's spec ends at step {schedule.total_steps}", "convert a checkpoint of this run")
    return spec.stages[schedule.place(max(0, step - 1)).stage]


def model_at(spec: Spec, step: int) -> ModelSpec:
    """The model as it is trained then: with the RoPE of the stage."""
    stage = stage_of(spec, step)
    return replace(spec.model, rope_base=stage.rope_base, yarn=stage.yarn)


def configuration(chosen: Chosen, longest: int, dtype: str | None = None) -> dict[str, Any]:
    """``config.json``. ``longest``: tokens of a sequence; ``dtype``: of all weights, None where they differ.

    Written for versions 4 and 5 of transformers.
    """
    named = {"dtype": dtype, "torch_dtype": dtype} if dtype else {}
    tokens = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    reach = {} if chosen.model.position == "learned" else {"max_position_embeddings": longest}
    return {**chosen.family.write(chosen.model), **reach, **tokens, **named}


def read_configuration(config: Any, where: str) -> Chosen:
    """The family and the model of a ``config.json``; RunError where it describes what our decoder does not compute."""
    family, model, wrong = recognise(config)
    if family is None or model is None or wrong:
        known = ", ".join(known.model_type for known in FAMILIES)
        raise RunError(
            f"config.json describes another model: {', '.join(wrong)}",
            f"our decoder computes {known}, with options; path: {where}",
            "remove config.json to take over the weights alone, where you know what they mean",
        )
    return Chosen(family=family, model=model)

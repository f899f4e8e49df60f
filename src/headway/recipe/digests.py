"""What stands in which digest (law 1: the mathematics in the recipe, everything else beside it).

recipe digest    the recipe's meaning: every field with its default, without comments, order of keys and paths of
                 sources (where text lies says nothing about what it says; its content is in the manifest digest)
spec digest      all of the Spec: recipe digest, data digests, derived values
section digests  one per part of the Spec, so that a difference can be named
stream digests   one per stage: what decides which tokens stand at which position. Lengths, batches and rates are
                 left out, so that lengthening a stage does not refuse a resume
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from headway.base.digests import digest_json
from headway.recipe.spec import Spec

if TYPE_CHECKING:
    from headway.recipe.schema import Recipe

SECTIONS = ("objective", "tokenizer", "model", "optimizer", "stability", "precision", "evaluation", "interventions")


def recipe_content(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain data, every default filled in, without the paths of sources."""
    content = recipe.model_dump(mode="json", by_alias=True)
    for source in content["data"]["sources"]:
        del source["path"]
    return content


def recipe_digest(recipe: Recipe) -> str:
    return digest_json(recipe_content(recipe))


def section_digests(spec: Spec) -> dict[str, str]:
    """``{"model": ..., "data": ..., "stages.main": ..., ...}``: one digest per part of the Spec."""
    plain = spec.to_json()
    parts: dict[str, Any] = {name: plain[name] for name in SECTIONS}
    parts["seed"] = plain["seed"]
    parts["data"] = {"seed": plain["data_seed"], "sources": plain["sources"], "manifest": plain["manifest_digest"]}
    parts |= {f"stages.{stage['name']}": stage for stage in plain["stages"]}
    return {name: digest_json(value) for name, value in parts.items()}


def stage_digests(spec: Spec) -> tuple[str, ...]:
    """One digest per stage, in order, lengths included."""
    return tuple(digest_json(dataclasses.asdict(stage)) for stage in spec.stages)


def changed_sections(before: Spec, after: Spec) -> list[str]:
    """Names of the parts that differ between two Specs."""
    old, new = section_digests(before), section_digests(after)
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))

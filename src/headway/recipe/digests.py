"""What stands in which digest (law 1: the mathematics in the recipe, everything else beside it).

recipe digest    the recipe's meaning: every field with its default, without comments, order of keys and paths of
                 sources, tokenizer and registry (where text lies says nothing about what it says; its content is in the
                 manifest digest)
spec digest      all of the Spec: recipe digest, data digests, derived values
section digests  one per part of the Spec and one per stage (lengths included), so that a difference can be named; run.json
                 holds them, and a spec that was changed afterwards is refused by the names of its changed parts
stream digests   one per stage: what decides which tokens stand at which position. Lengths, batches and rates are
                 left out, so that lengthening a stage does not refuse a resume
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headway.base.digests import digest_json
from headway.recipe.spec import ADDED as ADDED_TO_SPEC
from headway.recipe.spec import ExpertsSpec, ModelSpec, OptimizerSpec, PrecisionSpec, Spec, StabilitySpec

if TYPE_CHECKING:
    from headway.recipe.schema import Recipe

SECTIONS = ("objective", "tokenizer", "model", "optimizer", "stability", "precision", "evaluation", "interventions")
ADDED = {
    "Tokenizer": frozenset({"fim_tokens", "reserved", "reserved_count", "digits", "whitespace", "sample"})
    | {"path", "pattern", "special", "lossy"},
    "Model": ADDED_TO_SPEC[ModelSpec] | {"rotary_share"},
    "Experts": ADDED_TO_SPEC[ExpertsSpec],
    "Data": frozenset({"prepare", "held_out_by", "beyond_cap"}),
    "Source": frozenset(
        {"inventory", "without", "exclude", "revision", "repository_level", "held_out_by", "held_out_at"}
        | {"synthetic", "generator", "verifier"}
    ),
    "Prepare": frozenset({"quality_axes"}),
    "Stage": frozenset({"yarn", "packing", "infill", "mixture_rule"}),
    "Rate": frozenset({"tail", "batch_rule"}),
    "Optimizer": ADDED_TO_SPEC[OptimizerSpec],
    "Stability": ADDED_TO_SPEC[StabilitySpec],
    "Precision": ADDED_TO_SPEC[PrecisionSpec],
    "SpikePolicy": frozenset({"policy", "threshold", "most_roll_backs"}),
    "Interventions": frozenset({"damaged_data", "mixture"}),
}
"""By section: keys that came after the first release, left out at their default so that digests of earlier recipes stay."""


def recipe_content(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain data, every default filled in, without the paths of sources, tokenizer and registry.

    Fields that came later are left out at their default, so that digests of earlier recipes stay.
    """
    content = recipe.model_dump(mode="json", by_alias=True)
    _drop_added(content, recipe)
    for plain in content["data"]["sources"]:
        del plain["path"]
    content["tokenizer"].pop("path", None)
    if contamination := content["data"].get("prepare", {}).get("contamination"):
        del contamination["registry"]
    return content


def _drop_added(plain: Any, section: Any) -> None:
    """Walks the tree of sections and what they dumped to side by side."""
    if isinstance(section, tuple):
        for inner, dumped in zip(section, plain, strict=True):
            _drop_added(dumped, inner)
    elif hasattr(type(section), "model_fields"):
        for name, declared in type(section).model_fields.items():
            if name in ADDED.get(type(section).__name__, ()) and getattr(section, name) == declared.default:
                del plain[name]
            elif (key := declared.alias or name) in plain:
                _drop_added(plain[key], getattr(section, name))


def document_settings(recipe: Recipe) -> dict[str, Any]:
    """What of a recipe decides which documents its data holds, and as which text: steps, held-out rules, what is read."""
    data = recipe_content(recipe)["data"]
    own = ("kind", "include", "exclude", "field", "without", "held_out_by")
    sources = {source["name"]: {key: source[key] for key in own if key in source} for source in data["sources"]}
    return {key: data[key] for key in ("prepare", "held_out_by") if key in data} | {"sources": sources}


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


def changed_sections(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Names of the parts that differ between the section digests of two Specs."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))

"""What a stage's rule of mixture needs, and what it does not read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headway.recipe.findings import Finding, found
from headway.recipe.lines import KeyPath

if TYPE_CHECKING:
    from headway.recipe.schema import MixtureRule, Stage

READS = {
    "temperature": ("temperature",),
    "quality": ("temperature", "size_power", "scores", "axis"),
    "unimax": ("epochs",),
}
"""Kind -> the keys that it reads, besides sources."""
NEEDS = {"temperature": ("temperature",), "quality": ("temperature",), "unimax": ("epochs",)}
EXAMPLES = {"temperature": "temperature = 2", "epochs": "epochs = 4"}


def check_rule(at: KeyPath, stage: Stage) -> Iterator[Finding]:
    """Of the stage at ``at``; nothing where its weights are given."""
    rule = stage.mixture_rule
    if rule is None:
        return
    if stage.mixture:
        yield found(
            (*at, "mixture"),
            f"stage {stage.name!r} has both mixture and mixture_rule",
            "weights are given, or made by a rule",
            "remove one of the two; mixture_rule.sources says which sources take part",
        )
    yield from _missing(at, rule)
    for key in ("temperature", "size_power", "scores", "axis", "epochs"):
        value, declared = getattr(rule, key), type(rule).model_fields[key]
        if value != declared.default and key not in READS[rule.kind]:
            kinds = ", ".join(kind for kind, keys in READS.items() if key in keys)
            seen = f"{key} beside kind = {rule.kind!r}"
            yield found((*at, "mixture_rule", key), seen, f"it is read by {kinds}", f"remove {key}")


def _missing(at: KeyPath, rule: MixtureRule) -> Iterator[Finding]:
    for key in NEEDS[rule.kind]:
        if getattr(rule, key) is None:
            said = f"{rule.kind} without {key}"
            yield found((*at, "mixture_rule"), said, f"{rule.kind} is made by {key}", f"such as {EXAMPLES[key]}")
    if rule.kind == "quality" and not (rule.scores or rule.axis):
        yield found(
            (*at, "mixture_rule"),
            "quality without scores",
            "sources are weighed by scores that are stated, or by an axis of the data manifest",
            "add scores = { ... } or axis = ...",
        )

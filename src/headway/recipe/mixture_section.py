"""The section of a stage that makes its weights by a rule (``mixture_rules.py``)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headway.recipe.fields import Listed, Positive, Section, said


class MixtureRule(Section):
    """Weights of a stage's sources by a rule over their tokens, computed when the run is frozen. n is the target tokens of one
    pass over a source; plans before the data is built take the declared inventory."""

    kind: Literal["temperature", "quality", "unimax"] = said(
        "temperature: n^(1 / temperature); quality: n^size_power exp(score / temperature); unimax: equal shares, and no source "
        "beyond epochs passes, those of stages before included"
    )
    temperature: Positive | None = said(
        "of temperature: 1 is in proportion to n, higher is more even; of quality: higher heeds scores less; None: not used",
        None,
        ge=0.01,
        le=1e6,
    )
    size_power: Annotated[float, Field(ge=0, le=1)] = said("of quality: power of n; 0: size does not count", 1.0)
    scores: dict[str, float] = said("of quality: source -> score", {})
    axis: str = said("of quality: axis whose mean in the data manifest is the score of sources that state none; empty: none", "")
    epochs: Positive | None = said("of unimax: most passes over a source; None: not used", None, le=1e6)
    sources: Listed[str] = said("sources that take part; empty: all", ())

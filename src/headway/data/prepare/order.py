"""The steps in the order in which every document passes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.data.prepare.axes import QualityAxes
from headway.data.prepare.code import Code
from headway.data.prepare.contamination import Contamination
from headway.data.prepare.duplicates import Duplicates, Lines
from headway.data.prepare.near_duplicates import NearDuplicates
from headway.data.prepare.normalisation import Normalisation
from headway.data.prepare.quality import Quality, Repeats
from headway.data.prepare.selection import Extensions, Languages
from headway.data.prepare.sensitive import Personal, Secrets
from headway.data.prepare.steps import Comparing, Step

if TYPE_CHECKING:
    from headway.recipe.preparation import Prepare

ORDER: dict[str, type[Step]] = {
    "text": Normalisation,
    "extensions": Extensions,
    "code": Code,
    "languages": Languages,
    "secrets": Secrets,
    "personal": Personal,
    "quality": Quality,
    "repeats": Repeats,
    "contamination": Contamination,
    "quality_axes": QualityAxes,
    "duplicates": Duplicates,
    "near_duplicates": NearDuplicates,
    "lines": Lines,
}
"""Cheap before dear, what looks at one document before what compares. Lines last: they are counted over what is really kept."""


def settings_of(prepare: Prepare) -> list[tuple[str, dict[str, Any]]]:
    """(name, settings) of the steps that ``prepare`` asks for, in their order, as plain data."""
    sections = ((name, getattr(prepare, name)) for name in ORDER)
    return [(name, section.model_dump(mode="json")) for name, section in sections if section is not None]


def steps_of(settings: Iterable[tuple[str, Mapping[str, Any]]], directory: Path | None) -> list[Step]:
    """What is remembered of kept documents lies in temporary files of ``directory``; None: in memory."""
    return [_made(ORDER[name], plain, directory) for name, plain in settings]


def _made(step: type[Step], settings: Mapping[str, Any], directory: Path | None) -> Step:
    return step(settings, directory) if issubclass(step, Comparing) else step(settings)

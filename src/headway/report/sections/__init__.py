"""The page's sections, in order. Each is a function of the material; adding one means adding a line here."""

from __future__ import annotations

from headway.report.material import Material
from headway.report.page import Section
from headway.report.sections.origin import origin
from headway.report.sections.outcome import outcome
from headway.report.sections.planned import planned
from headway.report.sections.recovery import recovery
from headway.report.sections.samples import samples
from headway.report.sections.time import time
from headway.report.sections.training import training

SECTIONS = (outcome, planned, training, recovery, time, samples, origin)


def build_sections(material: Material) -> tuple[Section, ...]:
    return tuple(build(material) for build in SECTIONS)

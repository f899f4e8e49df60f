"""Descriptions that the layout tests train, their reference runs, and what is said where one differs."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from headway.recipe.load import load_recipe
from headway.recipe.resolve import resolve
from headway.recipe.spec import PrecisionSpec, Spec
from headway.train.prove.compare import Finding
from headway.train.prove.miniature import small_spec
from headway.train.prove.rank import Measured, Work, measure_alone

_references: dict[tuple, Measured] = {}


@functools.cache
def described(preset: str = "proxy", overrides: tuple[str, ...] = (), precision: str = "float32") -> Spec:
    """The miniature of a preset with changes, in float32."""
    spec = small_spec(resolve(load_recipe(preset, overrides), None))
    return replace(spec, precision=PrecisionSpec(precision))


def reference(work: Work) -> Measured:
    """Trained once per description; with one thread, as the ranks have."""
    key = (work.spec.digest(), work.micro_sequences, work.steps)
    if key not in _references:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        _references[key] = measure_alone(work)
        torch.set_num_threads(threads)
    return _references[key]


def failures(findings: dict[str, Finding]) -> list[str]:
    return [f"{f.what}: {f.difference:.1e} > {f.tolerance:.0e} at {f.where}" for f in findings.values() if not f.holds]

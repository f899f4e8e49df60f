"""The stream's oracle: the prototype that CONTRACTS section 1 was measured with."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from headway.data.stream import Skip
from headway.recipe.spec import Spec

REPOSITORY = Path(__file__).parents[2]


def _load() -> ModuleType:
    reference = Path(os.environ.get("HEADWAY_REFERENCE", REPOSITORY.parent / "shared" / "reference"))
    places = [folder / "prototypes" / "stream_positions.py" for folder in (reference.parent, reference)]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        pytest.skip(f"no stream prototype at {places[0]}: set HEADWAY_REFERENCE to the reference directory beside prototypes/")
    specification = importlib.util.spec_from_file_location("stream_positions_oracle", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def oracle() -> ModuleType:
    """The prototype as it is; results must equal its results."""
    return _load()


@pytest.fixture(scope="session")
def oracle_stream() -> Callable:
    """The prototype's Stream of a Spec. It fixes the mixture's seed to 0, so the seed is put in from outside."""
    module = _load()
    mix, count = module.mix, module.counts

    def build(spec: Spec, skips: tuple[Skip, ...] = ()):
        module.mix = lambda n, q, seed: mix(n, q, spec.data_seed)
        module.counts = lambda m, q, seed: count(m, q, spec.data_seed)
        sources = [module.Source((spec.data_seed, s.name), s.tokens, s.chunk_tokens) for s in spec.sources]
        stages = [(s.sequences, s.sequence_length, list(s.quanta)) for s in spec.stages]
        by_stage: dict[int, list] = {}
        for skip in skips:
            by_stage.setdefault(skip.stage, []).append((skip.first, skip.count))
        return module.Stream(sources, stages, by_stage)

    return build

"""The numbers of one short run, frozen. Change knowingly: a difference here is a change of the mathematics or of the data."""

from __future__ import annotations

import pytest

from headway.data.manifest import DataManifest

pytestmark = pytest.mark.e2e

DATA = "sha256:d26ab23c8771ce356a1338db348a96d5501f884cfc61ec76091a52f6cf5f2625"
SOURCES = [("numbers", 12121, 55), ("words", 9088, 56)]
LOSSES = {1: 5.9676, 5: 5.5737, 10: 4.8631, 15: 4.2522, 20: 3.6301, 24: 3.1524}
BFLOAT16_ACROSS_PROCESSORS = 0.01  # nats; products in bfloat16 round differently under other instruction sets


def test_golden_data(bench):
    manifest = DataManifest.load(bench.data)
    assert [(s.name, s.training.tokens, s.training.documents) for s in manifest.sources] == SOURCES
    assert manifest.digest() == DATA


def test_golden_losses(uninterrupted):
    assert len(uninterrupted.losses) == 24
    found = {step: uninterrupted.losses[step - 1] for step in LOSSES}
    assert found == pytest.approx(LOSSES, abs=BFLOAT16_ACROSS_PROCESSORS)

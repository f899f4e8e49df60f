"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("HEADWAY_TEST_EXAMPLES", "100"))
"""Of a property; make check takes fewer."""
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=EXAMPLES)
settings.load_profile("busy machine")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def reference() -> Path:
    """The folder with published data of known answers (``plan/``, ``faults/``, ...); tests that need it skip without it."""
    path = Path(os.environ.get("HEADWAY_REFERENCE", ROOT.parent / "shared" / "reference"))
    if not path.is_dir():
        pytest.skip(f"no reference material at {path}: set HEADWAY_REFERENCE")
    return path

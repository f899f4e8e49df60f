"""Layouts are checked against the stages where recipe and deployment meet."""

from __future__ import annotations

import pytest

from headway.base.errors import ConfigError
from headway.cli.describe import describe


def test_P6_a_layout_for_a_stage_that_the_recipe_lacks_is_refused():
    describe("demo", ["deployment.layouts.anneal={}"], None)
    with pytest.raises(ConfigError, match=r"layouts.anel is for no stage(?s:.*)did you mean anneal"):
        describe("demo", ["deployment.layouts.anel={}"], None)

"""The engine's last words go to a log on the run's own disk; how it ends must not depend on whether they fit."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headway.base.errors import EXIT_CONFIG


@pytest.mark.e2e
@pytest.mark.parametrize("place", [[], ["--rank", "1", "--world", "2", "--meeting", "nowhere"]], ids=["alone", "one of two"])
def test_C7_exit_code_is_that_of_the_error_where_the_log_is_full(tmp_path, place):
    command = [sys.executable, "-m", "headway.engine", "train", str(tmp_path), "--segment", "1", *place]
    with open("/dev/full", "w") as full:
        assert subprocess.run(command, stderr=full, stdout=subprocess.DEVNULL, timeout=120).returncode == EXIT_CONFIG

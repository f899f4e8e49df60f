"""Saves step 2 into a drill that kills it at its failpoint; run as a subprocess by test_store_kill."""

import sys
from pathlib import Path

from store_cases import save

from headway.base.failpoints import arm
from headway.rundir.layout import RunDirectory

run = RunDirectory.open(Path(sys.argv[1]))
arm(run.root)
save(run, 1, 2)

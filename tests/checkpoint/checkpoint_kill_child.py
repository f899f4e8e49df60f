"""Saves step 2 once per drill directory given, each in its own forked process, killed at that drill's failpoint."""

import os
import sys
from pathlib import Path

from checkpoint_cases import state
from sync_save import save_checkpoint

from headway.base.failpoints import arm
from headway.rundir.layout import RunDirectory

for root in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        run = RunDirectory.open(Path(root))
        arm(run.root)
        save_checkpoint(run, 1, 2, state(2), {"u": 2})
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

"""A supervisor as a process of its own: owner.py RUN. Prints its outcome as JSON, and errors as the command line would."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench import choose_file, quick, standin_launcher

import headway.supervise.supervisor as supervisor
from headway.base.errors import HeadwayError
from headway.rundir.layout import RunDirectory

if __name__ == "__main__":
    supervisor.choose = choose_file  # type: ignore[assignment]
    try:
        outcome = supervisor.supervise(RunDirectory.open(Path(sys.argv[1])), options=quick(), launcher=standin_launcher())
    except HeadwayError as error:
        print(str(error), file=sys.stderr)
        sys.exit(error.exit_code)
    print(json.dumps(dataclasses.asdict(outcome)))
    sys.exit(outcome.exit_code)

"""A run that its batch system stops goes on when the batch system starts it again: the deployment says how to ask for that."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Sequence

_SECONDS = 60.0


def requeue(command: Sequence[str], record: Callable[..., None]) -> bool:
    """Run it, and record what came of it; whether the run will come back."""
    words = [re.sub(r"\{([A-Za-z_]\w*)\}", lambda name: os.environ.get(name[1], name[0]), part) for part in command]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL)
        failed = "" if done.returncode == 0 else f"exit code {done.returncode}: {done.stderr.strip()[-500:]}"
    except (OSError, subprocess.TimeoutExpired) as error:
        failed = str(error)
    record("note", text=f"{' '.join(words)}: {failed or 'the run is queued again'}")
    return not failed

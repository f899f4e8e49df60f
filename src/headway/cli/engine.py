"""Starts the engine, the only way the command line reaches it: ``python -m headway.engine VERB``, JSON back on stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from headway.base.errors import EXIT_CONFIG, EXIT_ENVIRONMENT, ConfigError, EnvironmentFault, HeadwayError, Problem, RunError

Error = type[HeadwayError]
_BY_EXIT_CODE: dict[int, Error] = {EXIT_CONFIG: ConfigError, EXIT_ENVIRONMENT: EnvironmentFault}


def require_engine() -> None:
    """Refuse early, and by name, where PyTorch is not installed."""
    if find_spec("torch") is None:
        raise EnvironmentFault(
            "PyTorch is not installed in this environment",
            "plans, data, status and reports work without it; training, sampling and calibration do not",
            "pip install 'headway[engine]'",
        )


def ask_engine(verb: str, arguments: Sequence[str], send: Any = None) -> Any:
    """Run one engine verb to its end and return the JSON value that it prints.

    ``send`` goes to its stdin as JSON. Its stderr passes through to ours, except when it ends with an error object.
    """
    require_engine()
    command = [sys.executable, "-m", "headway.engine", verb, *arguments]
    data = None if send is None else json.dumps(send)
    done = subprocess.run(command, input=data, capture_output=True, text=True, env=os.environ.copy(), check=False)
    if done.returncode != 0:
        raise engine_error(verb, done.returncode, done.stdout, done.stderr)
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        seen = f"the engine's answer to {verb} is not JSON: {done.stdout[:200]!r}"
        raise RunError(seen, "every engine verb prints one JSON value", "run it with HEADWAY_DEBUG=1") from error


def engine_error(verb: str, code: int, stdout: str, stderr: str) -> HeadwayError:
    """The engine's own error where it gave one as JSON; else the tail of what it printed."""
    for text in (stdout, stderr.strip().rpartition("\n")[2]):
        try:
            value = json.loads(text)
            problems = [
                Problem(p["seen"], p.get("rule", ""), p.get("way_out", ""), p.get("where", "")) for p in value["problems"]
            ]
            return _BY_EXIT_CODE.get(code, RunError)(problems)
        except (ValueError, KeyError, TypeError):
            continue
    tail = "\n".join(stderr.strip().splitlines()[-15:])
    ended = f"signal {-code}" if code < 0 else f"exit code {code}"
    return _BY_EXIT_CODE.get(code, RunError)(f"the engine failed at {verb} ({ended})\n{tail}".rstrip())

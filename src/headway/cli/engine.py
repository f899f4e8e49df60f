"""Starts the engine, the only way the command line reaches it: ``python -m headway.engine VERB``, JSON back on stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from headway.base.errors import EXIT_CONFIG, EXIT_ENVIRONMENT, ConfigError, EnvironmentFault, HeadwayError, Problem, RunError

Error = type[HeadwayError]
TAIL_LINES = 15
SEE_MORE = "run it again with HEADWAY_DEBUG=1, which shows all that the engine prints, and report that"
_BY_EXIT_CODE: dict[int, Error] = {EXIT_CONFIG: ConfigError, EXIT_ENVIRONMENT: EnvironmentFault}


def require_engine() -> None:
    """Refuse early, and by name, where PyTorch is not installed."""
    if find_spec("torch") is None:
        raise EnvironmentFault(
            "PyTorch is not installed in this environment",
            "plans, data, status and reports work without it; training, sampling and calibration do not",
            "install it with its engine extra: pip install '.[engine]' in a clone of Headway",
        )


def ask_engine(verb: str, arguments: Sequence[str], send: Any = None) -> Any:
    """Run one engine verb to its end and return the JSON value that it prints on stdout.

    ``send`` goes to its stdin as JSON. Its stderr is kept back, and the end of it shown only where it fails without
    saying why on stdout; with HEADWAY_DEBUG=1 all of it passes through.
    """
    require_engine()
    command = _command(verb, arguments)
    data = None if send is None else json.dumps(send)
    stderr = None if os.environ.get("HEADWAY_DEBUG") == "1" else subprocess.PIPE
    done = subprocess.run(command, input=data, stdout=subprocess.PIPE, stderr=stderr, text=True, check=False)
    if done.returncode != 0:
        raise engine_error(verb, done.returncode, done.stdout, done.stderr or "")
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        seen = f"the engine's answer to {verb} is not JSON: {done.stdout[:200]!r}"
        raise RunError(seen, "every engine verb prints one JSON value", SEE_MORE) from error


def follow_engine(verb: str, arguments: Sequence[str], on_record: Callable[[Any], None]) -> None:
    """Run one engine verb to its end; ``on_record`` takes each JSON object, one a line, as it is printed. Errors as above."""
    require_engine()
    command = _command(verb, arguments)
    with tempfile.TemporaryFile("w+") as kept:
        stderr = None if os.environ.get("HEADWAY_DEBUG") == "1" else kept
        process, last = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True), ""
        try:
            for last in process.stdout or ():
                record = _value(last)
                if record is not None and "problems" not in record:
                    on_record(record)
            code = process.wait()
        finally:
            process.kill()
        if code != 0:
            kept.seek(0)
            raise engine_error(verb, code, last, kept.read())


def _command(verb: str, arguments: Sequence[str]) -> list[str]:
    """Whatever ends this process ends the engine: nobody would read its answer."""
    return [sys.executable, "-m", "headway.engine", "--owner", str(os.getpid()), verb, *arguments]


def _value(line: str) -> dict[str, Any] | None:
    """A record; None for what else may stand on stdout."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def engine_error(verb: str, code: int, stdout: str, stderr: str) -> HeadwayError:
    """The engine's own error where it gave one; else the tail of its stderr."""
    kind = _BY_EXIT_CODE.get(code, RunError)
    problems = said_problems(stdout)
    if problems:
        return kind(problems)
    tail = "\n".join(stderr.strip().splitlines()[-TAIL_LINES:])
    ended = f"signal {-code}" if code < 0 else f"exit code {code}"
    seen = f"the engine failed at {verb} ({ended})\n{tail}".rstrip()
    return kind(seen, "an engine that cannot go on says why; this one could not", SEE_MORE)


def said_problems(stdout: str) -> list[Problem]:
    """Of the object {label, problems, exit_code} on the last line of ``stdout``; empty where there is none."""
    try:
        value = json.loads(stdout.strip().rpartition("\n")[2])
        return [Problem(p["seen"], p.get("rule", ""), p.get("way_out", ""), p.get("where", "")) for p in value["problems"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []

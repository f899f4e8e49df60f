"""Why a trainer ended, in words: its exit status, what it left in error.json, the tail of its log."""

from __future__ import annotations

import signal
from typing import Any

from headway.base.errors import HeadwayError
from headway.base.files import read_json
from headway.rundir.layout import RunDirectory
from headway.supervise.launcher import log_of

_TAIL_BYTES, _TAIL_LINES = 8192, 15


def status_words(code: int | None, signal_number: int | None) -> str:
    if signal_number is not None:
        try:
            return f"ended by {signal.Signals(signal_number).name}"
        except ValueError:
            return f"ended by signal {signal_number}"
    return f"exit code {code}" if code is not None else "exit status unknown"


def error_of(run: RunDirectory, segment: int) -> dict[str, Any] | None:
    """{label, problems, exit_code} as the trainer left it; None when it left nothing readable."""
    path = run.segment(segment) / "error.json"
    try:
        error = read_json(path, "error record") if path.exists() else None
    except HeadwayError:
        return None
    return error if isinstance(error, dict) else None


def own_error(run: RunDirectory, segment: int, rank: int | None) -> dict[str, Any] | None:
    """``error_of``, unless it is the word of another than ``rank``, which ended first: that one noticed the end, and no more."""
    error = error_of(run, segment) or {}
    is_others = None not in (rank, error.get("rank")) and error["rank"] != rank
    return None if is_others else error or None


def error_words(error: dict[str, Any]) -> str:
    """``label: problem; problem``. A problem is a text or {seen, rule, way_out, where}."""
    problems = [p.get("seen", "") if isinstance(p, dict) else str(p) for p in error.get("problems", [])]
    return f"{error.get('label', 'error')}: {'; '.join(problems)}"


def log_tail(run: RunDirectory, segment: int, rank: int = 0) -> list[str]:
    """The last lines of a rank's log."""
    try:
        with open(log_of(run, segment, rank), "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            data = file.read()
    except OSError:
        return []
    return data.decode(errors="replace").splitlines()[-_TAIL_LINES:]


def cause(run: RunDirectory, segment: int, rank: int = 0) -> str:
    """One line: the trainer's own message, else the last line of the log of the rank that failed, else nothing."""
    error = error_of(run, segment)
    if error is not None:
        return error_words(error)
    return next((line.strip() for line in reversed(log_tail(run, segment, rank)) if line.strip()), "")

"""How long a run waited in the queue of a scheduler before its owner opened it, as the environment of the job tells.

    submitted ----- queue ----- started -- interpreter, lease -- open record          HEADWAY_SUBMITTED, SLURM_JOB_START_TIME

Both are seconds of realtime, of the hosts that set them. So is the stamp that they are compared with: nothing but the length of
the queue rests on it, and where records stand on both sides it never exceeds the time between them. A job is submitted with
``sbatch --export=ALL,HEADWAY_SUBMITTED=$(date +%s) ...``; a scheduler that requeues it sets the new start by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

SUBMITTED, STARTED = "HEADWAY_SUBMITTED", "SLURM_JOB_START_TIME"


def queued_ns(environment: Mapping[str, str], now_ns: int, last_ns: int | None) -> int:
    """Of the time up to ``now_ns`` (realtime), since ``last_ns`` (of the record before; None: there is none). 0: not known."""
    submitted, started = _read(environment, SUBMITTED), _read(environment, STARTED)
    if submitted is None:
        return 0
    began = submitted if last_ns is None else max(submitted, last_ns)
    return max(0, min(now_ns, now_ns if started is None else started) - began)


def _read(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) * 10**9 if text.isascii() and text.isdecimal() and len(text) <= 12 else None

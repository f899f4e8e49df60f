"""The categories of time. Every nanosecond of a run belongs to exactly one of them (docs/decisions/0001)."""

from __future__ import annotations

from enum import StrEnum


class Category(StrEnum):
    """``rolled_back`` and ``skipped`` are given afterwards: they take over time that was first counted as work."""

    QUEUE = "queue"
    PROVISION = "provision"
    INIT = "init"
    COMPILE = "compile"
    RESTORE = "restore"
    DATA_STALL = "data_stall"
    PRODUCTIVE = "productive"
    BLOCKING_SAVE = "blocking_save"
    EVALUATION = "evaluation"
    VALIDATION_REPLAY = "validation_replay"
    HANG = "hang"
    DETECTION_TO_STOP = "detection_to_stop"
    RECONFIGURE = "reconfigure"
    PLANNED_PAUSE = "planned_pause"
    UNKNOWN = "unknown"
    ROLLED_BACK = "rolled_back"
    SKIPPED = "skipped"


_NAMES = frozenset(Category)


def is_category(value: object) -> bool:
    return isinstance(value, str) and value in _NAMES

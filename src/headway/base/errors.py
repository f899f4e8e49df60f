"""Errors as a map: what was seen, what the rule is, the way out.

Three kinds, apart, because three different people mend them:

- ``ConfigError``       the description is wrong: mend the recipe, the deployment or the command line (exit 2);
- ``EnvironmentFault``  the machine is wrong: disk, permissions, memory, a run directory in use (exit 3);
- ``RunError``          the run itself failed: damaged checkpoints, crash loop, non-finite loss (exit 4).

A user's mistake never shows a traceback; ``assert`` is only for our own bugs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

EXIT_OK, EXIT_FINDINGS, EXIT_CONFIG, EXIT_ENVIRONMENT, EXIT_RUN = 0, 1, 2, 3, 4


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. ``where`` is ``file:line`` or a path; empty when there is none."""

    seen: str
    rule: str = ""
    way_out: str = ""
    where: str = ""

    def __str__(self) -> str:
        head = f"{self.where}: {self.seen}" if self.where else self.seen
        return "\n    ".join([head, *(part for part in (self.rule, self.way_out) if part)])


class HeadwayError(Exception):
    """Base of every error meant for a person. ``problems`` lists all of them at once."""

    exit_code = EXIT_RUN
    label = "error"

    def __init__(self, seen: str | list[Problem], rule: str = "", way_out: str = "", where: str = ""):
        self.problems = seen if isinstance(seen, list) else [Problem(seen, rule, way_out, where)]
        super().__init__("\n".join(str(p) for p in self.problems))


class ConfigError(HeadwayError):
    """The recipe, the deployment or the command line is wrong."""

    exit_code = EXIT_CONFIG
    label = "configuration error"


class EnvironmentFault(HeadwayError):
    """The machine cannot do what was asked: disk, permissions, memory, another owner."""

    exit_code = EXIT_ENVIRONMENT
    label = "environment error"


class RunError(HeadwayError):
    """The run failed: its own state or its own processes are to blame."""

    exit_code = EXIT_RUN
    label = "run failed"


class CheckpointRefused(RunError):
    """A checkpoint that looked whole could not be loaded: the next attempt goes on from an older one."""

    def __init__(self, checkpoint: str, cause: HeadwayError):
        self.checkpoint = checkpoint
        super().__init__(cause.problems)


class DamagedData(EnvironmentFault):
    """Training tokens do not have their digest: ``damage`` says which, as a quarantine record names them."""

    def __init__(self, damage: dict[str, object], cause: HeadwayError):
        self.damage = damage
        super().__init__(cause.problems)


class SilentCorruption(RunError):
    """Results that are not what they must be, though nothing failed.

    ``facts``: {by, step, agreed, rank, ranks, host, hosts, parameter, tensors, words}; a rank or host that is not known is None.
    ``agreed``: the last step after which the same check had found all sound: checkpoints after it are suspect.
    """

    def __init__(self, facts: dict[str, Any], rule: str, way_out: str):
        self.facts = facts
        super().__init__(facts["words"], rule, way_out)


def from_os_error(error: OSError, path: object, doing: str) -> EnvironmentFault:
    """Turn an OSError into the map: the path and the cause are always named."""
    import errno

    way_out = {
        errno.ENOSPC: "free space on that filesystem, or choose another directory",
        errno.EDQUOT: "the quota of that filesystem is used up: free space or raise it",
        errno.EACCES: "give this user permission on that path, or choose another directory",
        errno.EPERM: "give this user permission on that path, or choose another directory",
        errno.EROFS: "that filesystem is read-only: choose another directory",
        errno.ENOENT: "check the path",
        errno.EEXIST: "it is there already, and is something else: choose another path",
        errno.ENOTDIR: "a part of that path is a file, not a directory: check the path",
    }.get(error.errno or 0, "check the storage under that path")
    return EnvironmentFault(f"{doing}: {error.strerror or error}", f"path: {path}", way_out)

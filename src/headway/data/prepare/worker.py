"""A process that prepares: ``python -m headway.data.prepare.worker OWNER``, started by the build, a line of JSON each way.

    in    setup {"steps": [[name, settings], ...]}, then batches {"stem", "without"} whose pieces lie in STEM.in
    out   {"done": stem} when STEM.out is there, {"failed": problems}

It ends with its owner; its files are of no use to anybody else.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from headway.base.errors import HeadwayError, from_os_error
from headway.base.owner import end_with, tell_owner
from headway.base.plain import from_plain
from headway.data.prepare.batches import Batch, read_pieces, write_settled
from headway.data.prepare.order import steps_of
from headway.data.prepare.settle import measured_of, parted, settled
from headway.data.prepare.steps import Step


def prepare(batch: Batch, steps: list[Step]) -> None:
    """STEM.in -> STEM.out"""
    looking, comparing = parted([step for step in steps if step.name not in batch.without])
    found = []
    for piece in read_pieces(Path(batch.stem)):
        result = settled(piece, looking)
        if not result.dropped:
            result = dataclasses.replace(result, measured=measured_of(result.piece, comparing))
        found.append((piece, result))
    write_settled(Path(batch.stem), found)


def main() -> None:
    end_with(int(sys.argv[1]))
    try:
        steps = steps_of(json.loads(sys.stdin.readline())["steps"], None)
        for line in sys.stdin:
            batch = from_plain(Batch, json.loads(line))
            try:
                prepare(batch, steps)
            except OSError as error:
                raise from_os_error(error, error.filename or batch.stem, "cannot prepare documents") from error
            tell_owner(done=batch.stem)
    except HeadwayError as error:
        tell_owner(failed=[dataclasses.asdict(problem) for problem in error.problems], kind=type(error).__name__)


if __name__ == "__main__":
    main()

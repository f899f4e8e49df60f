"""Builds data in a process of its own, to be killed: DIRECTORY WORKERS DRILL PREPARE JSONL... Tells what it is told as JSON."""

import json
import sys
from pathlib import Path

from data_helpers import small_recipe

from headway.base.failpoints import arm
from headway.data.build import build_data

PART_BYTES, SHARD_BYTES = 6_000, 5_000


def main() -> None:
    directory, workers, drill, prepare, *sources = sys.argv[1:]
    if drill != "none":
        arm(Path(drill))
    named = [{"name": Path(path).stem, "kind": "jsonl", "path": path} for path in sources]
    recipe = small_recipe(named, **json.loads(prepare))
    build_data(
        recipe,
        Path(directory),
        lambda what, facts: print(json.dumps([what, facts]), flush=True),
        workers=int(workers),
        shard_bytes=SHARD_BYTES,
        part_bytes=PART_BYTES,
    )


if __name__ == "__main__":
    main()

"""A process that tokenises: ``python -m headway.data.worker OWNER``, started by the build, one line of JSON each way at a time.

    in    setup {spools, seed, names, arranged, tokenizer, document_token, root, dtype, ...}, then tasks
    out   {"told": [documents, bytes, tokens]} on the way, {"done": receipt} at the end of each task, {"failed": problems}

It ends with its owner, and whatever it was making then is not there: parts appear whole.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from headway.base.errors import HeadwayError, from_os_error
from headway.base.owner import end_with, tell_owner
from headway.base.plain import from_plain
from headway.data.parts import PartPlace, PartTask, tokenise
from headway.data.split import Arranged, Order
from headway.data.spool import SealedSpool, Shuffled
from headway.data.tokenizer import Tokenizer
from headway.data.vocabulary.fast import Proof


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """What all tasks of a build share."""

    spools: tuple[str, ...]
    names: tuple[str, ...]
    arranged: tuple[str | None, ...]  # by source: the file of its order; None: shuffled by seed and name
    seed: int
    tokenizer: str
    document_token: str
    root: str
    dtype: str
    lossy: bool = False  # text may come back changed
    proof: Proof | None = None  # that tiktoken gives the same ids; None: tokenizers does it all


class Workshop:
    """Makes parts, in this process."""

    def __init__(self, setup: Setup):
        self._spools = [SealedSpool.open(Path(path)) for path in setup.spools]
        self._orders: list[Order] = [
            Arranged(Path(path)) if path else Shuffled(len(spool), setup.seed, name)
            for spool, name, path in zip(self._spools, setup.names, setup.arranged, strict=True)
        ]
        self._tokenizer = Tokenizer.load(Path(setup.tokenizer), setup.document_token)
        if setup.proof:
            self._tokenizer.use(setup.proof)
        self._tokenizer.keeps_text |= setup.lossy  # or need not: nothing is to be checked
        self._place = PartPlace(root=Path(setup.root), dtype=setup.dtype)

    def make(self, task: PartTask, tell: Any) -> None:
        try:
            tokenise(task, self._spools[task.source], self._orders[task.source], self._tokenizer, self._place, tell)
        except OSError as error:
            raise from_os_error(error, error.filename or self._place.stem(task), "cannot write a part") from error

    def close(self) -> None:
        for spool in self._spools:
            spool.close()


def main() -> None:
    end_with(int(sys.argv[1]))
    try:
        workshop = Workshop(from_plain(Setup, json.loads(sys.stdin.readline())))
        for line in sys.stdin:
            task = from_plain(PartTask, json.loads(line))
            workshop.make(task, lambda documents, size, tokens: tell_owner(told=[documents, size, tokens]))
            tell_owner(done=task.number)
    except HeadwayError as error:
        tell_owner(failed=[dataclasses.asdict(problem) for problem in error.problems], kind=type(error).__name__)


if __name__ == "__main__":
    main()

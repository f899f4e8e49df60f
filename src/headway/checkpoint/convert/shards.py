"""A set of safetensors files that hold one state together: read as one, written in files of a bounded size.

A tensor lies in one file, so one that is larger than a shard has a file of its own; it is streamed all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import xxhash

from headway.base.errors import RunError
from headway.checkpoint.convert.contents import About, Kind, LeftOut, digest_of
from headway.checkpoint.convert.reading import COPY, damaged, read_at, read_through
from headway.checkpoint.convert.safetensors_file import DIGESTS, SafetensorsFile, open_file
from headway.store.manifest import BLOCK_BYTES


class ShardContents:
    """Tensors of several files. Those with a digest are proven once, when first read."""

    def __init__(self, files: Iterable[SafetensorsFile], about: About, left_out: tuple[LeftOut, ...] = ()):
        self.tensors: dict[str, Kind] = {}
        self.about, self.left_out = about, left_out
        self._files: dict[str, SafetensorsFile] = {}
        self._proven: set[str] = set()
        for file in files:
            self._add(file)

    def _add(self, file: SafetensorsFile) -> None:
        for name, kind in file.tensors.items():
            if name in self._files:
                seen = f"{name} is in {self._files[name].path.name} and in {file.path.name}"
                raise RunError(seen, f"a tensor lies in one file of a set; path: {file.path}", "remove the file that is too many")
            self.tensors[name], self._files[name] = kind, file

    def rows(self, name: str, first: int, last: int) -> np.ndarray:
        file, kind = self._files[name], self.tensors[name]
        if name in file.digests and name not in self._proven:
            _prove(file, name)
            self._proven.add(name)
        return read_at(file.path, file.places[name] + first * kind.row_bytes, (last - first) * kind.row_bytes)


def _prove(file: SafetensorsFile, name: str) -> None:
    kind = file.tensors[name]
    blocks = [xxhash.xxh3_128_hexdigest(b.data) for b in read_through(file.path, file.places[name], kind.nbytes, BLOCK_BYTES)]
    if digest_of(kind, blocks) != file.digests[name]:
        way_out = f"{COPY}; or remove {DIGESTS} from the metadata where the values were changed on purpose"
        raise damaged(file.path, f"{name}: digest differs from the one in the file's metadata", way_out)


def open_files(paths: Iterable[Path]) -> list[SafetensorsFile]:
    return [open_file(path) for path in paths]


def plan_shards(tensors: dict[str, Kind], shard_bytes: int) -> list[list[str]]:
    """Names by file, in order, as many as fit; at least one file."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, kind in tensors.items():
        if shards[-1] and size + kind.nbytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += kind.nbytes
    return shards


def shard_name(stem: str, number: int, count: int) -> str:
    """``number`` from 1."""
    return f"{stem}-{number:05d}-of-{count:05d}.safetensors"

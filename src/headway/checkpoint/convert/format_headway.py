"""A checkpoint directory of ours, as ``store`` writes and verifies it. Written as of one rank, every tensor in one chunk.

Reading proves every byte against the receipts, whatever layout of ranks wrote it. Writing needs no whole tensor in memory,
which is why the data file is streamed here and not by ``store.save.write_rank``; receipt and commit are the store's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from headway.base.errors import ConfigError, from_os_error
from headway.base.files import write_atomic
from headway.checkpoint.convert.contents import About, Contents, Kind, LeftOut, Written, in_blocks, pieces, whole_chunk
from headway.checkpoint.convert.options import Options
from headway.store.assemble import CARRIERS, fill, new_scratch
from headway.store.durable import DurableWriter
from headway.store.manifest import DTYPE_BYTES, Receipt, TensorEntry, receipt_bytes
from headway.store.names import MANIFEST, data_file, parse_name, receipt_file
from headway.store.rectangle import Part, in_file_order, safetensors_header
from headway.store.save import ManifestFields, commit
from headway.store.verify import OpenCheckpoint, open_checkpoint

FIRST_SEGMENT = 1


def recognise(path: Path) -> bool:
    """Also without its manifest: a save that was never committed is refused as such, not taken for loose files."""
    return path.is_dir() and ((path / MANIFEST).exists() or any(path.glob("receipt-*.json")))


@dataclass(frozen=True, kw_only=True)
class CheckpointContents:
    """Rows put together from the chunks of all ranks."""

    checkpoint: OpenCheckpoint
    tensors: dict[str, Kind]
    about: About
    scratch: np.ndarray
    left_out: tuple[LeftOut, ...] = ()

    def rows(self, name: str, first: int, last: int) -> np.ndarray:
        kind = self.tensors[name]
        shape = (last - first, *kind.shape[1:]) if kind.shape else ()
        values = np.empty(shape, CARRIERS[DTYPE_BYTES[kind.dtype]])
        fill(self.checkpoint, name, values, (first, *(0 for _ in kind.shape[1:])) if kind.shape else (), self.scratch)
        return values.reshape(-1).view(np.uint8)


def open_contents(path: Path) -> CheckpointContents:
    checkpoint = open_checkpoint(path)
    manifest = checkpoint.manifest
    return CheckpointContents(
        checkpoint=checkpoint,
        tensors={name: Kind(dtype=entry.dtype, shape=entry.shape) for name, entry in checkpoint.tensors.items()},
        about=About(segment=manifest.segment, step=manifest.step, state=manifest.state),
        scratch=new_scratch(),
    )


def write(contents: Contents, staging: Path, options: Options) -> Written:
    """Data file, receipt, manifest. What the source does not tell of segment and step comes from ``options``."""
    segment, step = _place(contents.about, options)
    state = contents.about.state
    if state is None:
        state = {"converted": {**options.describe_source(), "left_out": [item.what for item in contents.left_out]}}
    staging.mkdir()
    receipt = _write_data(contents, staging, segment, step)
    try:
        write_atomic(staging / receipt_file(0), receipt_bytes(receipt))
    except OSError as error:
        raise from_os_error(error, staging, "cannot write checkpoint") from error
    manifest = commit(staging, ManifestFields(segment=segment, step=step, world=1, state=state))
    return Written(details={"segment": segment, "step": step, "state_digest": manifest.state_digest})


def _place(about: About, options: Options) -> tuple[int, int]:
    """Segment and step of the checkpoint to be; refuses names and steps that would contradict it."""
    if about.step is not None and options.step not in (None, about.step):
        raise ConfigError(
            f"--step {options.step}", f"the source says that it is the state after step {about.step}", "leave --step out"
        )
    step = about.step if about.step is not None else options.step or 0
    segment = about.segment if about.segment is not None else FIRST_SEGMENT
    named = parse_name(options.destination.name)
    if named is not None and (named.segment, named.step) != (segment, step):
        raise ConfigError(
            f"{options.destination.name} is the name of segment {named.segment}, step {named.step}",
            f"the checkpoint would be of segment {segment}, step {step}",
            "choose another name, or give the step with --step where the source does not tell it",
        )
    return segment, step


def _write_data(contents: Contents, directory: Path, segment: int, step: int) -> Receipt:
    """Stream all tensors into the data file of rank 0; digests are taken as the blocks pass."""
    parts = in_file_order([_part(name, kind) for name, kind in contents.tensors.items()])
    save = {"segment": str(segment), "step": str(step), "rank": "0"}
    header = safetensors_header(parts, {"format": "pt", **save})
    path, blocks = directory / data_file(0), {part.name: list[str]() for part in parts}
    file_bytes = len(header) + sum(part.nbytes for part in parts)
    try:
        DurableWriter({}, step).write(path, _stream(contents, header, parts, blocks), file_bytes)
    except OSError as error:
        raise from_os_error(error, path, "cannot write checkpoint data") from error
    return Receipt(
        segment=segment,
        step=step,
        rank=0,
        world=1,
        file=path.name,
        file_bytes=file_bytes,
        header_bytes=len(header),
        header_digest=xxhash.xxh3_128_hexdigest(header),
        tensors=_chunk_table(contents, parts, blocks, len(header)),
    )


def _part(name: str, kind: Kind) -> Part:
    offset = (0,) * len(kind.shape)
    return Part(name=name, dtype=kind.dtype, global_shape=kind.shape, offset=offset, shape=kind.shape)


def _stream(contents: Contents, header: bytes, parts: list[Part], blocks: dict[str, list[str]]) -> Iterator[memoryview | bytes]:
    yield header
    for part in parts:
        for block in in_blocks(pieces(contents, part.name)):
            blocks[part.name].append(xxhash.xxh3_128_hexdigest(block.data))
            yield block.data


def _chunk_table(contents: Contents, parts: list[Part], blocks: dict[str, list[str]], at: int) -> dict[str, TensorEntry]:
    table = {}
    for part in parts:
        table[part.name] = whole_chunk(contents.tensors[part.name], tuple(blocks[part.name]), data_file(0), at)
        at += part.nbytes
    return table

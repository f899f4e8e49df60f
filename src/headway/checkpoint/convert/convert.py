"""The conversion: open the source, write the destination whole, say what was left out (the verb ``convert``)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headway.base.errors import ConfigError
from headway.checkpoint.convert import FORMATS
from headway.checkpoint.convert.contents import Contents, Written, total_bytes
from headway.checkpoint.convert.options import SHARD_BYTES, Options
from headway.checkpoint.convert.source import Source, locate
from headway.checkpoint.convert.staging import refuse_existing, staged

DTYPES = {"bf16": "BF16", "fp32": "F32"}


@dataclass(frozen=True, kw_only=True)
class Request:
    """As asked. ``source``: RUN, RUN:NAME or a path."""

    source: str
    destination: Path
    to: str
    source_format: str | None = None  # None: by its files
    shard_bytes: int = SHARD_BYTES
    step: int | None = None
    dtype: str | None = None


def convert(request: Request) -> dict[str, Any]:
    """Carry it out; returns what there is to tell, as JSON."""
    _check(request)
    refuse_existing(request.destination)
    source = locate(request.source, request.source_format)
    _refuse_inside(request.destination, source.path)
    contents = FORMATS[source.format].open(source.path)
    spec = source.spec(contents.about.state) if request.to == "huggingface" else None
    options = Options(
        source=source.path,
        source_format=source.format,
        destination=request.destination,
        shard_bytes=request.shard_bytes,
        step=request.step,
        dtype=DTYPES[request.dtype] if request.dtype else None,
        spec=spec,
        tokenizer=source.tokenizer(spec),
    )
    with staged(request.destination, _needed_bytes(contents, request.to)) as staging:
        written = FORMATS[request.to].write(contents, staging, options)
    return _facts(request, source, contents, written)


def _check(request: Request) -> None:
    """Options that contradict each other."""
    for name in filter(None, (request.to, request.source_format)):
        if name not in FORMATS:
            raise ConfigError(f"unknown format {name!r}", f"known: {', '.join(FORMATS)}", "choose one of them")
    if request.dtype is not None and request.to != "huggingface":
        raise ConfigError("--dtype is for huggingface", "in all other formats values keep their dtype", "leave --dtype out")
    if request.dtype is not None and request.dtype not in DTYPES:
        raise ConfigError(f"--dtype {request.dtype}", f"known: {', '.join(DTYPES)}", "choose one of them")
    if request.step is not None and request.to != "headway":
        raise ConfigError("--step is for headway", "the other formats keep what the source tells", "leave --step out")
    if request.step is not None and not 0 <= request.step < 2**62:
        raise ConfigError(f"--step {request.step}", "a step is a whole number from 0", "--step 1000")
    if request.shard_bytes < 1 << 20:
        raise ConfigError(f"--shard-bytes {request.shard_bytes}", "a shard has 1 MiB or more", "--shard-bytes 4GiB")


def _refuse_inside(destination: Path, source: Path) -> None:
    if source.absolute().resolve() in destination.absolute().resolve().parents:
        raise ConfigError(f"{destination} lies in the source", "a source stays as it is", "choose another place")


def _needed_bytes(contents: Contents, to: str) -> int:
    """Of the disk, at least; weights alone may also be narrower."""
    return 0 if to == "huggingface" else total_bytes(contents.tensors)


def _facts(request: Request, source: Source, contents: Contents, written: Written) -> dict[str, Any]:
    left_out = [asdict(item) for item in (*contents.left_out, *written.left_out)]
    return {
        "kind": "conversion",
        "schema_version": 1,
        "source": str(source.path),
        "from": source.format,
        "rejected": list(source.rejected),
        "destination": str(request.destination),
        "to": request.to,
        "tensors": len(contents.tensors),
        "bytes": total_bytes(contents.tensors),
        "segment": contents.about.segment,
        "step": contents.about.step,
        "left_out": left_out,
        "notes": list(written.notes),
        **written.details,
    }

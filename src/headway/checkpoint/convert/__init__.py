"""Checkpoints in other formats, and back: one module per format, one table that names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headway.checkpoint.convert import format_dcp, format_headway, format_huggingface, format_safetensors
from headway.checkpoint.convert.contents import Contents, Written
from headway.checkpoint.convert.options import Options


@dataclass(frozen=True, kw_only=True)
class Format:
    """``recognise``: by the files, nothing is read. ``write``: to a path that does not exist yet."""

    recognise: Callable[[Path], bool]
    open: Callable[[Path], Contents]
    write: Callable[[Contents, Path, Options], Written]


FORMATS = {
    name: Format(recognise=module.recognise, open=module.open_contents, write=module.write)
    for name, module in {
        "headway": format_headway,
        "dcp": format_dcp,
        "huggingface": format_huggingface,
        "safetensors": format_safetensors,
    }.items()
}
"""In the order in which they are tried: the last would also recognise what the others are made of."""

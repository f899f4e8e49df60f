"""Files of built data, mapped: of the size they must have, and read plainly before a mapping is touched."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from headway.base.errors import EnvironmentFault, from_os_error


def read_plainly(path: Path, at: int, end: int) -> None:
    """Bring bytes into memory by a read before the mapping is touched: a failing or cut file then gives an error that names it
    (through a mapping it would kill the process), and a slow one blocks without holding the interpreter."""
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(at)
            found = len(file.read(end - at))
    except OSError as error:
        raise from_os_error(error, path, "cannot read data file") from error
    if found != end - at:
        raise damaged(path, f"ends {end - at - found} bytes early")


def damaged(path: Path | str, part: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"data file {path} is not what the run was frozen with ({part})",
        "its bytes do not have the digest that stands in the data manifest",
        "restore that file from a copy, or build the data again in another directory",
    )


def check_size(path: Path | str, size: int) -> None:
    try:
        found = os.stat(path).st_size
    except OSError as error:
        raise from_os_error(error, path, "cannot read data file") from error
    if found != size:
        raise damaged(path, f"{found} bytes instead of {size}")


def map_file(path: Path, size: int) -> np.ndarray:
    """The file's bytes, mapped; a file of another size is refused here, other content at first touch."""
    check_size(path, size)
    try:
        return np.asarray(np.memmap(path, np.uint8, "r")) if size else np.empty(0, np.uint8)
    except OSError as error:
        raise from_os_error(error, path, "cannot read data file") from error

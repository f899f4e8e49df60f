"""All tensors under our flat names in one safetensors file, or in a directory of them; the state stands in the metadata.

    out.safetensors            a destination with this ending is one file
    out/state-00001-of-00003.safetensors ...                     any other a directory

Other programs' files are read alike: their names stay, and segment, step and state are not known then.
"""

from __future__ import annotations

import re
from pathlib import Path

from headway.base.digests import canonical_json
from headway.base.errors import RunError
from headway.checkpoint.convert.contents import About, Contents, Written, parse_about
from headway.checkpoint.convert.options import Options
from headway.checkpoint.convert.reading import COPY, damaged
from headway.checkpoint.convert.safetensors_file import SafetensorsFile, write_file
from headway.checkpoint.convert.shards import ShardContents, open_files, plan_shards, shard_name

SUFFIX = ".safetensors"
ABOUT = "headway.state"
SHARD = "headway.shard"
"""Metadata keys: the state, and "2/3" for the second of three files."""


def recognise(path: Path) -> bool:
    return path.suffix == SUFFIX if path.is_file() else path.is_dir() and any(path.glob(f"*{SUFFIX}"))


def open_contents(path: Path) -> ShardContents:
    paths = [path] if path.is_file() else sorted(path.glob(f"*{SUFFIX}"))
    files = open_files(paths)
    if not files:
        raise RunError(f"{path} holds no {SUFFIX} file", "the format is one file or a directory of them", "check the path")
    for file in files:
        _refuse_rectangles(file)
    _check_set(path, files)
    return ShardContents(files, _about(files))


def _refuse_rectangles(file: SafetensorsFile) -> None:
    """One rank's data file holds parts of tensors under names that only its receipt explains."""
    cut = next((name for name in file.tensors if "@" in name), None)
    if cut is not None:
        raise RunError(
            f"{file.path.name} holds {cut}, a part of a tensor",
            "the data file of one rank is no state: receipts and manifest belong to it",
            f"name the checkpoint's directory: {file.path.parent}",
        )


def _check_set(path: Path, files: list[SafetensorsFile]) -> None:
    """Files that say which of how many they are must all be there."""
    said = [file.metadata[SHARD] for file in files if SHARD in file.metadata]
    if not said:
        return
    count = said[0].rpartition("/")[2]
    expected = [f"{number}/{count}" for number in range(1, int(count) + 1)] if re.fullmatch(r"[1-9]\d{0,5}", count) else []
    if len(said) != len(files) or sorted(said) != sorted(expected):
        raise RunError(f"{path.name} holds the files {', '.join(said)} of a set", f"a set is read whole; path: {path}", COPY)


def _about(files: list[SafetensorsFile]) -> About:
    """The state that every file of a set repeats."""
    texts = {file.metadata.get(ABOUT) for file in files}
    if len(texts) > 1:
        raise damaged(files[0].path, "it and its neighbours belong to different states")
    (text,) = texts
    return About() if text is None else parse_about(text, str(files[0].path))


def write(contents: Contents, staging: Path, options: Options) -> Written:
    metadata = {ABOUT: canonical_json(contents.about.to_json()).decode()}
    if options.destination.suffix == SUFFIX:
        write_file(contents, list(contents.tensors), staging, {**metadata, SHARD: "1/1"})
        return Written(details={"files": 1})
    shards = plan_shards(contents.tensors, options.shard_bytes)
    staging.mkdir()
    for number, names in enumerate(shards, start=1):
        path = staging / shard_name("state", number, len(shards))
        write_file(contents, names, path, {**metadata, SHARD: f"{number}/{len(shards)}"})
    return Written(details={"files": len(shards)})

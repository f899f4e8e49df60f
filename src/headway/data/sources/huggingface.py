"""Data sets of the Hugging Face hub: the JSONL and Parquet files of a repository, at one commit.

``path`` is the repository's name, ``revision`` a branch, tag or commit; the commit that it stood for is what is read and what the
manifest names. Scripts of a repository are never run. The hub is asked through huggingface_hub, with its token and its cache
settings; files are streamed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, Protocol

from headway.base.errors import ConfigError, EnvironmentFault
from headway.data.sources import jsonl, parquet
from headway.data.sources.document import Documents, SourceRecipe
from headway.data.sources.places import EXCLUDED, Opened, SourceFile, matches, need_path, nothing_matches, optional

FILES = (*parquet.PARQUET_FILES, *jsonl.JSONL_FILES)
ANSWER_SECONDS = 30.0


@dataclass(frozen=True)
class Snapshot:
    """``files``: name -> what changes with its content (the blob's or LFS object's digest)."""

    commit: str
    files: dict[str, str]


class Hub(Protocol):
    """As much of the hub as is used; tests have one of their own."""

    def snapshot(self, repository: str, revision: str | None) -> Snapshot: ...
    def open(self, repository: str, commit: str, name: str) -> BinaryIO: ...


class LibraryHub:
    """The hub through huggingface_hub."""

    def __init__(self) -> None:
        self._library = optional("huggingface_hub", "huggingface_hub", "reading a data set of the Hugging Face hub")

    def snapshot(self, repository: str, revision: str | None) -> Snapshot:
        try:
            info = self._library.HfApi().dataset_info(repository, revision=revision, files_metadata=True, timeout=ANSWER_SECONDS)
        except Exception as error:  # its HTTP client's errors are not its own
            raise self._refusal(repository, revision, error) from error
        found = {file.rfilename: str(getattr(file.lfs, "sha256", None) or file.blob_id) for file in info.siblings or ()}
        return Snapshot(info.sha, found)

    def open(self, repository: str, commit: str, name: str) -> BinaryIO:
        return self._library.HfFileSystem().open(f"datasets/{repository}@{commit}/{name}", "rb")

    def _refusal(self, repository: str, revision: str | None, error: Exception) -> Exception:
        errors = optional("huggingface_hub.errors", "huggingface_hub", "reading a data set of the Hugging Face hub")
        said = f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]
        if isinstance(error, errors.GatedRepoError):
            rule = "its owner asks everyone to agree to terms, and the hub for a token of who did"
            return EnvironmentFault(f"data set {repository} is gated: {said}", rule, "agree on its page, then: hf auth login")
        if isinstance(error, errors.RevisionNotFoundError):
            return ConfigError(f"data set {repository} has no revision {revision!r}", "a branch, tag or commit", "check revision")
        if isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
            rule = "path is the name of a data set, such as owner/name; one that is private needs a token"
            return ConfigError(f"the hub has no data set {repository!r}: {said}", rule, "check path, or: hf auth login")
        return EnvironmentFault(
            f"the Hugging Face hub cannot be reached: {said}",
            f"data set {repository} is read from there while it is built",
            "check the network (HF_ENDPOINT, HF_HUB_OFFLINE, proxies), or fetch its files and read them as parquet or jsonl",
        )


def open_dataset(source: SourceRecipe) -> Opened:
    hub, repository = LibraryHub(), need_path(source)
    snapshot = hub.snapshot(repository, source.revision)
    patterns = tuple(source.include) or FILES
    found = [name for name in sorted(snapshot.files) if matches(name, patterns)]
    unread = [name for name in found if not matches(name, FILES)]
    if unread:
        raise ConfigError(
            f"source {source.name}: {unread[0]} is neither JSONL nor Parquet",
            f"of a data set, files that match {', '.join(FILES)} are read; its scripts are not run",
            'name others in include; the hub keeps a Parquet copy of most data sets: revision = "refs/convert/parquet"',
        )
    if not found:
        raise nothing_matches(source, patterns)
    where = f"hf://datasets/{repository}@{snapshot.commit}"
    listed = [_file(hub, repository, snapshot, name, tuple(source.exclude)) for name in found]

    def read(file: SourceFile) -> Documents:
        is_parquet = file.relative.endswith(".parquet")
        return parquet.read_rows(file, source.field) if is_parquet else jsonl.read_lines(file, source.field)

    return Opened(where, lambda: listed, read)


def _file(hub: Hub, repository: str, snapshot: Snapshot, name: str, exclude: tuple[str, ...]) -> SourceFile:
    where = f"hf://datasets/{repository}@{snapshot.commit}/{name}"
    left_out = EXCLUDED if matches(name, exclude) else ""
    stamp = (name, snapshot.files[name])
    return SourceFile(name, where, stamp, left_out, 0, lambda: hub.open(repository, snapshot.commit, name))

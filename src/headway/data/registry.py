"""The evaluation registry: the texts that a model will be judged on, which must not be in what it learns from.

    REGISTRY/
      registry.json     kind, schema_version, name, version, sets: name, version, file, digest, examples, licence, provenance
      arithmetic.jsonl  {"id": "a-1", "text": "what the model is shown", "answer": "what it should give"}

One line an example; ``answer`` may be left out; further keys are for whoever evaluates and are let through. A set's digest is the
sha256 of its file, checked whenever it is read. The registry's own digest is of names, versions and digests of its sets: neither
licences nor places change it. Sets are added or given a new version, never changed under the same one; .registry.json.lock is
held by who does that.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headway.base.digests import canonical_json, digest_bytes, digest_file, digest_json, short
from headway.base.errors import ConfigError, EnvironmentFault, RunError, from_os_error
from headway.base.files import make_directory, read_json, write_atomic, write_json
from headway.base.plain import from_plain

KIND = "evaluation-registry"


@dataclass(frozen=True)
class Example:
    """What a model is shown, and what it should give (empty: nothing in particular)."""

    id: str
    text: str
    answer: str = ""


@dataclass(frozen=True)
class EvaluationSet:
    """``file`` is relative to the registry; ``digest`` is of its bytes."""

    name: str
    version: str
    file: str
    digest: str
    examples: int
    licence: str = "unknown"
    provenance: str = ""


@dataclass(frozen=True)
class Registry:
    name: str
    version: str
    sets: tuple[EvaluationSet, ...]
    kind: str = field(default=KIND)
    schema_version: int = field(default=1)

    def digest(self) -> str:
        sets = [[s.name, s.version, s.digest] for s in self.sets]
        return digest_json({"kind": self.kind, "schema_version": self.schema_version, "sets": sets})


def load_registry(path: Path) -> Registry:
    """The registry of the file ``path``; its sets are checked when they are read."""
    path = Path(path).expanduser()
    try:
        value = read_json(path, "evaluation registry")
        if not isinstance(value, dict) or value.get("kind") != KIND or value.get("schema_version") != 1:
            raise ConfigError(
                f"{path} is not an evaluation registry of schema 1",
                f'it is a JSON object with kind = "{KIND}" and schema_version = 1',
                "check data.prepare.contamination.registry",
            )
        registry: Registry = from_plain(Registry, value, str(path))
    except (RunError, EnvironmentFault) as error:
        raise ConfigError(error.problems) from error
    names = [s.name for s in registry.sets]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"{path} has sets {names or 'none'}", "a registry has at least one set, each with a name of its own")
    return registry


def read_examples(path: Path, evaluation: EvaluationSet) -> Iterator[Example]:
    """Examples of a set of the registry in the file ``path``. ConfigError: its file is not the one that was registered."""
    file = Path(path).expanduser().parent / evaluation.file
    try:
        found = digest_file(file)
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise from_os_error(error, file, f"cannot read the evaluation set {evaluation.name}") from error
    if found != evaluation.digest:
        raise ConfigError(
            f"{file} has the digest {short(found)}, the registry says {short(evaluation.digest)}",
            "an evaluation set is known by its content",
            "restore the file, or register it as a new version of the set",
        )
    if len(lines) != evaluation.examples:
        raise ConfigError(
            f"{file} holds {len(lines):,} examples, the registry says {evaluation.examples:,}",
            "an example is a line, and the registry counts them",
            "correct the number in the registry",
        )
    for number, line in enumerate(lines, 1):
        yield _example(line, f"{file}:{number}")


def _example(line: bytes, where: str) -> Example:
    rule = 'an example is one JSON object a line with the texts "id" and "text", and "answer" where there is one'
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigError("the line is no JSON", rule, "mend the line and register the file again", where) from None
    if isinstance(value, dict):
        texts = [value.get("id"), value.get("text"), value.get("answer", "")]
        if all(isinstance(text, str) for text in texts):
            return Example(*texts)
    raise ConfigError("the line is no example", rule, "mend the line and register the file again", where)


def write_registry(path: Path, name: str, version: str, sets: dict[str, Sequence[Example]]) -> Registry:
    """Write the registry ``path`` and a file per set beside it, each set with the registry's version."""
    make_directory(path.parent, "directory of the registry")
    entries = tuple(_write_set(path, set_name, version, examples) for set_name, examples in sets.items())
    registry = Registry(name, version, entries)
    write_json(path, dataclasses.asdict(registry))
    return registry


def add_set(
    path: Path, name: str, version: str, examples: Iterable[Example], *, licence: str = "unknown", provenance: str = ""
) -> EvaluationSet:
    """Add a set to the registry ``path``, or replace its older version; a registry that is not there is made.

    The same content again changes nothing. ConfigError: that version of the set is registered with other content.
    """
    path = Path(path).expanduser()
    make_directory(path.parent, "directory of the registry")
    data = b"".join(canonical_json(dataclasses.asdict(example)) + b"\n" for example in examples)
    digest = digest_bytes(data)
    with _alone(path):
        registry = load_registry(path) if path.exists() else Registry(path.stem, version, ())
        before = next((s for s in registry.sets if (s.name, s.version) == (name, version)), None)
        if before is not None:
            if before.digest == digest:
                return before
            raise ConfigError(
                f"{path} has version {version} of {name} with the digest {short(before.digest)}, this has {short(digest)}",
                "a set is never changed under the same version",
                "register it under another version",
            )
        file = _file_of(path, name, version, digest)
        write_atomic(path.parent / file, data)
        added = EvaluationSet(name, version, file, digest, data.count(b"\n"), licence, provenance)
        sets = (*(s for s in registry.sets if s.name != name), added)
        write_json(path, dataclasses.asdict(dataclasses.replace(registry, sets=sets)))
    return added


def _file_of(path: Path, name: str, version: str, digest: str) -> str:
    """A name for a new set's file; another one where a file of that name has other content: another set's, or one left behind by
    a set that was replaced."""
    file = f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', f'{name}-{version}').strip('.-')}.jsonl"
    if (path.parent / file).exists() and digest_file(path.parent / file) != digest:
        return f"{file.removesuffix('.jsonl')}-{digest[-12:]}.jsonl"
    return file


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One at a time changes the registry ``path``; the others wait. The kernel lets go when a process ends, however it ends."""
    beside = path.with_name(f".{path.name}.lock")
    try:
        lock = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise from_os_error(error, beside, "cannot change the evaluation registry") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _write_set(path: Path, name: str, version: str, examples: Iterable[Example]) -> EvaluationSet:
    lines = [canonical_json(dataclasses.asdict(example)) for example in examples]
    data = b"".join(line + b"\n" for line in lines)
    write_atomic(path.parent / f"{name}.jsonl", data)
    return EvaluationSet(name, version, f"{name}.jsonl", digest_bytes(data), len(lines))

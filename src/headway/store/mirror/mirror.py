"""The second place for checkpoints: copies of committed ones on shared or object storage, URL/RUN_ID/g0001-s00000040/...

    put      here -> there   data and receipts, then the manifest          ``copy``: what is written when, and why
    verify   there           every byte is read back
    fetch    there -> here   hidden until it is whole                      ``fetch``
    prune    there           manifests first; the newest that was read back whole never goes

Listings may be old: they suggest names, and reading MANIFEST.json decides. One owner writes (whoever holds the run's lease). A
process killed while it sends may leave parts of an object that S3 bills and never shows: let the bucket's lifecycle rule abort
incomplete uploads after a few days.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headway.base.clocks import Clock, SystemClock
from headway.base.digests import digest_bytes, short
from headway.base.errors import ConfigError, RunError
from headway.store.manifest import Manifest, manifest_bytes
from headway.store.mirror.blocks import side_by_side
from headway.store.mirror.copy import Copy, Proof, described, files_of
from headway.store.mirror.faults import MirrorFault
from headway.store.mirror.fetch import download, settle
from headway.store.mirror.objects import Objects
from headway.store.names import MANIFEST, CheckpointName, parse_name
from headway.store.verify import Verdict, open_checkpoint

__all__ = ["Copied", "Mirror", "MirrorFault", "Proof"]

Names = list[str]
"""Of checkpoints. Inside ``Mirror``, ``list`` is its own."""


@dataclass(frozen=True, kw_only=True)
class Copied:
    """What a ``put`` did. ``kept_bytes``: of data files that were whole there already."""

    name: str
    sent_bytes: int
    kept_bytes: int


class Mirror:
    """The copies of one run. Every method may raise a ``MirrorFault`` when the place cannot be used."""

    def __init__(self, objects: Objects, run_id: str):
        if not run_id or "/" in run_id:
            raise ConfigError(f"{run_id!r} cannot be the name of a run on a mirror", "it is one part of a path")
        self._objects, self._run_id = objects, run_id
        self._read_back: dict[str, str] = {}  # name -> digest of the manifest under which this process read back every byte

    @staticmethod
    def open(url: str, run_id: str, clock: Clock | None = None) -> Mirror:
        """``url``: file:///shared/runs, s3://bucket/prefix, memory://x, a path. ConfigError where it cannot be understood."""
        return Mirror(Objects.open(url, clock or SystemClock()), run_id)

    @property
    def url(self) -> str:
        return self._objects.url

    def list(self) -> Names:
        """Names that a listing shows, along the chain. A hint: ``has`` tells which are checkpoints."""
        return [str(name) for name in sorted(filter(None, map(parse_name, self._objects.names(self._run_id))))]

    def has(self, name: str) -> bool:
        """Whether it was committed there; not yet, whether it is whole."""
        return self._copy(name).manifest_data() is not None

    def put(self, directory: Path, proof: Proof = Proof.RECEIPTS) -> Copied:
        """Copy a committed checkpoint, or what of it is missing there. RunError when it is damaged here: no damage is sent.

        ``Proof.READ_BACK`` also mends a copy that was damaged there.
        """
        checkpoint, copy = open_checkpoint(directory), self._copy(directory.name)
        self._refuse_stranger(copy, checkpoint.manifest)
        sent = side_by_side([partial(copy.put_file, directory, receipt, proof) for receipt in checkpoint.receipts])
        for stray in self._objects.names(copy.prefix) - {MANIFEST} - files_of(checkpoint.manifest):
            self._objects.delete(copy.key(stray))  # what a killed process left
        manifest = manifest_bytes(checkpoint.manifest)
        copy.put_small(MANIFEST, manifest)
        if proof is Proof.READ_BACK:
            self._read_back[copy.name] = digest_bytes(manifest)
        all_bytes = sum(receipt.file_bytes for receipt in checkpoint.receipts)
        return Copied(name=copy.name, sent_bytes=sum(sent), kept_bytes=all_bytes - sum(sent))

    def verify(self, name: str) -> Verdict:
        """Read everything back: manifest, receipts, every block of every file. Never raises for damage."""
        copy = self._copy(name)
        try:
            small = copy.small_files()
            receipts = described(name, small).receipts
        except RunError as error:
            return Verdict(False, tuple(problem.seen for problem in error.problems), 0)
        flaws = side_by_side([partial(copy.flaw, receipt) for receipt in receipts])
        if not any(flaws):
            self._read_back[name] = digest_bytes(small[MANIFEST])
        whole_bytes = sum(receipt.file_bytes for receipt, wrong in zip(receipts, flaws) if not wrong)
        return Verdict(not any(flaws), tuple(filter(None, flaws)), whole_bytes)

    def fetch(self, name: str, checkpoints_root: Path) -> Path:
        """Bring a checkpoint back under its name. RunError when something has that name here, or the copy is damaged."""
        target = checkpoints_root / name
        if target.exists() or target.is_symlink():
            state = "committed here already" if (target / MANIFEST).exists() else "here already, without a manifest"
            raise RunError(
                f"{name} is {state}",
                f"what is fetched replaces nothing; path: {target}",
                "go on from it, or move that directory away",
            )
        return settle(self.download(name, checkpoints_root), checkpoints_root)

    def download(self, name: str, checkpoints_root: Path) -> Path:
        """The first half of ``fetch``: whole and durable, in a hidden directory; ``settle`` gives it its name."""
        return download(self._copy(name), checkpoints_root)

    def prune(self, keep: set[str]) -> Names:
        """Delete what is older than the newest that was read back whole and not in ``keep``; returns the names.

        That newest one is read back first, unless this process did before. Nothing goes where none is whole.
        """
        listed = self.list()
        if not set(listed) - keep:
            return []
        anchor = next((name for name in reversed(listed) if self._is_proven(name)), None)
        older = listed[: listed.index(anchor)] if anchor is not None else []
        surplus = [self._copy(name) for name in older if name not in keep]
        going = {copy: files for copy in surplus if (files := copy.files())}  # some stores list what is empty for a while
        for copy in going:
            self._objects.delete(copy.key(MANIFEST))
        for copy, files in going.items():
            for file in sorted(files - {MANIFEST}):
                self._objects.delete(copy.key(file))
            self._objects.drop_empty(copy.prefix)
        return [copy.name for copy in going]

    def _copy(self, name: str) -> Copy:
        if parse_name(name) is None:
            raise RunError(f"{name!r} is no name of a checkpoint", f"they are written like {CheckpointName(1, 40)}")
        return Copy(self._objects, f"{self._run_id}/{name}")

    def _refuse_stranger(self, copy: Copy, manifest: Manifest) -> None:
        """A torn manifest there is no checkpoint and is overwritten; another checkpoint is not."""
        owner = manifest.state.get("run_id", self._run_id)
        if owner != self._run_id:
            raise RunError(f"{copy.name} belongs to run {owner}", f"this is the mirror of run {self._run_id}", "copy it by hand")
        there = copy.manifest()
        if there is not None and there.digest != manifest.digest:
            raise RunError(
                f"another checkpoint lies on the mirror as {copy.name} ({short(there.digest)}, here {short(manifest.digest)})",
                f"{copy.where}; a run uses a name once, so two directories write as run {self._run_id}",
                "give one of them another mirror",
            )

    def _is_proven(self, name: str) -> bool:
        data = self._copy(name).manifest_data()
        return data is not None and (self._read_back.get(name) == digest_bytes(data) or self.verify(name).ok)

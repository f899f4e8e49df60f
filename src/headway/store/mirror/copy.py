"""One checkpoint as it lies on the mirror, whole or not: how its files are written there, read and proven.

    rank00000.safetensors    1  each block proven as it is read here, size checked there
    receipt-00000.json       2  read back
    MANIFEST.json            3  read back; only this makes it a checkpoint

A receipt lies there only after its data file did, whole: an object appears when all of it is there, its size is compared, and
where a file is sent anew its receipt goes first. So a file need not be sent again when the receipt there is this one, byte for
byte (it names the save and digests every block; names are never used twice), and the size is right. That trusts the storage to
give back what it took, as its checksums promise; ``Proof.READ_BACK`` does not, and reads every byte again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import TypeVar

from headway.base.errors import RunError, from_os_error
from headway.store.manifest import Manifest, Receipt, load_manifest, receipt_bytes
from headway.store.mirror.blocks import Read, flaw, proven, reading
from headway.store.mirror.faults import MirrorFault
from headway.store.mirror.objects import Objects
from headway.store.names import MANIFEST, data_file, receipt_file
from headway.store.verify import OpenCheckpoint, open_checkpoint

T = TypeVar("T")


class Proof(Enum):
    """What shows that a file there is whole."""

    RECEIPTS = "its receipt and its size"
    READ_BACK = "every byte"


@dataclass(frozen=True)
class Copy:
    """``prefix``: its key, RUN_ID/NAME. Every method may raise a ``MirrorFault``."""

    objects: Objects
    prefix: str

    @property
    def name(self) -> str:
        return self.prefix.rpartition("/")[2]

    @property
    def where(self) -> str:
        return f"mirror: {self.objects.url}/{self.prefix}"

    def key(self, file: str) -> str:
        return f"{self.prefix}/{file}"

    def reader(self, file: str) -> Read:
        return partial(self.objects.read, self.key(file))

    def manifest_data(self) -> bytes | None:
        """What lies there as the manifest; None: this is no checkpoint."""
        return self.objects.get(self.key(MANIFEST))

    def manifest(self) -> Manifest | None:
        """None also where it is torn."""
        data = self.manifest_data()
        try:
            return None if data is None else _in_scratch(self.name, {MANIFEST: data}, load_manifest)
        except RunError:
            return None

    def small_files(self) -> dict[str, bytes]:
        """Receipts and manifest, the manifest last. RunError where one is missing or the manifest is torn."""
        manifest = self._small_file(MANIFEST)
        world = _in_scratch(self.name, {MANIFEST: manifest}, load_manifest).world
        return {file: self._small_file(file) for file in map(receipt_file, range(world))} | {MANIFEST: manifest}

    def flaw(self, receipt: Receipt, stop: Event) -> str:
        """What is wrong with a data file; empty when every byte is proven."""
        return flaw(receipt, self.objects.size(self.key(receipt.file)), self.reader(receipt.file), self.where, stop)

    def put_file(self, directory: Path, receipt: Receipt, proof: Proof, stop: Event) -> int:
        """One rank's data file and receipt; the bytes that had to be sent."""
        file, said = receipt_file(receipt.rank), receipt_bytes(receipt)
        there = self.objects.get(self.key(file))
        if there == said and not self._doubt(receipt, proof, stop):
            return 0
        if there is not None:
            self.objects.delete(self.key(file))
        with reading(directory / receipt.file) as read:
            pieces = partial(proven, receipt, read, f"path: {directory / receipt.file}", stop)
            self.objects.stream(self.key(receipt.file), receipt.file_bytes, pieces)
        self._require_kept(self._doubt(receipt, proof, stop))
        self.put_small(file, said)
        return receipt.file_bytes

    def put_small(self, file: str, data: bytes) -> None:
        if self.objects.get(self.key(file)) != data:
            self.objects.put(self.key(file), data)
            kept = self.objects.get(self.key(file)) == data
            self._require_kept("" if kept else f"{file} is not what was sent")

    def files(self) -> set[str]:
        """By its manifest and by a listing: either may be gone or old."""
        manifest = self.manifest()
        return self.objects.names(self.prefix) | (files_of(manifest) if manifest else set())

    def _doubt(self, receipt: Receipt, proof: Proof, stop: Event) -> str:
        """What speaks against a data file whose receipt is right."""
        if proof is Proof.READ_BACK:
            return self.flaw(receipt, stop)
        size = self.objects.size(self.key(receipt.file)) or 0
        return "" if size == receipt.file_bytes else f"{receipt.file} has {size:,} bytes instead of {receipt.file_bytes:,}"

    def _require_kept(self, wrong: str) -> None:
        if wrong:
            rule = f"{self.where}; what is there after writing is what was sent"
            raise MirrorFault(
                f"the mirror did not keep a copy: {wrong}", rule, "copy again; if it happens again, check that storage"
            )

    def _small_file(self, file: str) -> bytes:
        data = self.objects.get(self.key(file))
        if data is None:
            seen = f"{self.name} is not on the mirror" if file == MANIFEST else f"{file} is missing"
            raise RunError(seen, self.where, "use another checkpoint")
        return data


def files_of(manifest: Manifest) -> set[str]:
    """Data files and receipts."""
    return {file(rank) for rank in range(manifest.world) for file in (data_file, receipt_file)}


def described(name: str, small: dict[str, bytes]) -> OpenCheckpoint:
    """Manifest and receipts, proven as those of a local checkpoint are; its directory is gone, so only they can be used."""
    return _in_scratch(name, small, open_checkpoint)


def _in_scratch(name: str, small: dict[str, bytes], load: Callable[[Path], T]) -> T:
    """The readers of checkpoints read files: one way to judge a manifest, wherever it lies."""
    try:
        with TemporaryDirectory(prefix="headway-mirror-") as scratch:
            directory = Path(scratch) / name
            directory.mkdir()
            for file, data in small.items():
                (directory / file).write_bytes(data)
            return load(directory)
    except OSError as error:
        raise from_os_error(error, "the directory for temporary files", "cannot look at a manifest") from error

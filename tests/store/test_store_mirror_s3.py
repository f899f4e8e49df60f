"""The mirror on a real S3 server: SeaweedFS on 127.0.0.1, reached by s3fs as any bucket is."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import fsspec
import pytest
from mirror_cases import BUCKET, DATA, OWNER, READER, content, save_two
from store_cases import RUN_ID, chain_of, flip_bit, make_run, record_save

from headway.base.clocks import FakeClock
from headway.base.errors import EnvironmentFault
from headway.store.mirror import blocks as mirror_blocks
from headway.store.mirror import objects as mirror_objects
from headway.store.mirror.choice import choose_with_mirror
from headway.store.mirror.mirror import Mirror, MirrorFault, Proof

pytestmark = pytest.mark.e2e
CHILD = Path(__file__).with_name("store_mirror_child.py")
URL = f"s3://{BUCKET}/runs"
LARGE_ROWS = 30_000
"""Gives two files of 11.5 MB: three parts each."""


@pytest.fixture(autouse=True)
def _place(server, monkeypatch):
    """An empty bucket; small parts, so that a test's files have several."""
    use(monkeypatch, server.environment())
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(mirror_objects, "PART_BYTES", 5 << 20)
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"retries": {"total_max_attempts": 1}}})  # they sleep
    storage = bucket()
    if storage.exists(BUCKET):
        storage.rm(BUCKET, recursive=True)
    storage.mkdir(BUCKET)


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def mirror(clock):
    return Mirror.open(URL, RUN_ID, clock)


def use(monkeypatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def bucket():
    """The bucket as another client sees it."""
    import s3fs

    return s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)


def keys(name: str) -> set[str]:
    prefix = f"{BUCKET}/runs/{RUN_ID}/{name}"
    return {key.rpartition("/")[2] for key in bucket().find(prefix) if key != prefix}


def test_a_checkpoint_comes_back_as_it_went(mirror, run, tmp_path):
    name = save_two(run, 1, 2, rows=LARGE_ROWS)
    copied = mirror.put(run.checkpoints / name)
    assert copied.sent_bytes > 20_000_000
    assert mirror.list() == [name]
    assert mirror.verify(name).ok
    assert bucket().info(f"{BUCKET}/runs/{RUN_ID}/{name}/{DATA[0]}")["ETag"].endswith('-3"'), "it went in three parts"
    fetched = mirror.fetch(name, tmp_path / "elsewhere")
    assert content(fetched) == content(run.checkpoints / name)
    assert mirror.put(run.checkpoints / name).sent_bytes == 0


def test_C1_killed_in_the_middle_of_an_upload(mirror, run, server):
    """The object that was under way is not there at all; the one before it is not sent again."""
    name = save_two(run, 1, 2, rows=LARGE_ROWS)
    environment = {**os.environ, "PYTHONPATH": str(CHILD.parent), **server.environment()}
    arguments = [sys.executable, str(CHILD), "s3", URL, str(run.checkpoints / name), "7"]
    done = subprocess.run(arguments, env=environment, capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert keys(name) == {DATA[0], "receipt-00000.json"}
    assert not mirror.has(name)
    assert not mirror.verify(name).ok
    copied = mirror.put(run.checkpoints / name)
    sizes = [(run.checkpoints / name / file).stat().st_size for file in DATA]
    assert (copied.kept_bytes, copied.sent_bytes) == tuple(sizes)
    assert mirror.verify(name).ok


def test_local_damage_is_never_copied(mirror, run, monkeypatch):
    monkeypatch.setattr(mirror_blocks, "GROUP_BYTES", 1 << 20)  # the first part is there when the damage is met
    name = save_two(run, 1, 2, rows=LARGE_ROWS)
    flip_bit(run.checkpoints / name / DATA[1], -5)
    with pytest.raises(Exception, match="digest differs"):
        mirror.put(run.checkpoints / name)
    assert keys(name) <= {DATA[0], "receipt-00000.json"}
    assert bucket().list_multipart_uploads(BUCKET) == [], "what was begun was given up"


def test_a_restart_fetches_what_this_disk_lost_and_an_object_there_that_was_damaged_is_refused(mirror, run):
    names = [save_two(run, 1, step) for step in (10, 20, 30)]
    for name, step in zip(names, (10, 20, 30)):
        record_save(run, 1, step, name)
        mirror.put(run.checkpoints / name)
    shutil.rmtree(run.checkpoints)
    key = f"{BUCKET}/runs/{RUN_ID}/{names[2]}/{DATA[0]}"
    data = bytearray(bucket().cat_file(key))
    data[1000] ^= 1
    bucket().pipe_file(key, bytes(data))
    choice = choose_with_mirror(run, chain_of(run), mirror)
    assert (choice.checkpoint, choice.fetched) == (names[1], True)
    assert choice.rejected[0]["checkpoint"] == names[2]


def test_prune(mirror, run):
    names = [save_two(run, 1, step) for step in (10, 20, 30)]
    for name in names:
        mirror.put(run.checkpoints / name, Proof.READ_BACK)
    assert mirror.prune({names[0]}) == [names[1]]
    assert [mirror.has(name) for name in names] == [True, False, True]
    assert keys(names[1]) == set()
    assert mirror.prune({names[0]}) == [], "SeaweedFS lists an empty directory for a while"


def test_a_bucket_that_does_not_exist_is_named(run, clock):
    mirror = Mirror.open("s3://no-such-bucket/runs", RUN_ID, clock)
    name = save_two(run, 1, 2)
    for action in (mirror.list, lambda: mirror.has(name), lambda: mirror.put(run.checkpoints / name)):
        with pytest.raises(MirrorFault, match="The specified bucket does not exist") as caught:
            action()
        assert "mirror: s3://no-such-bucket/runs" in str(caught.value)
        assert "make it, or correct checkpoints.mirror" in str(caught.value)
    assert clock.slept == []


def test_rights_that_are_missing_are_named(server, run, clock, monkeypatch):
    use(monkeypatch, server.environment(READER))
    mirror = Mirror.open(URL, RUN_ID, clock)
    with pytest.raises(MirrorFault, match="Access Denied") as caught:
        mirror.put(run.checkpoints / save_two(run, 1, 2))
    assert "give these credentials those rights" in str(caught.value)
    assert READER[1] not in str(caught.value)
    assert clock.slept == []


def test_a_wrong_secret_is_refused_and_not_repeated(server, clock, monkeypatch):
    use(monkeypatch, server.environment((OWNER[0], "not-the-secret")))
    with pytest.raises(MirrorFault, match="cannot list") as caught:
        Mirror.open(URL, RUN_ID, clock).list()
    assert "not-the-secret" not in str(caught.value)
    assert "give these credentials those rights" in str(caught.value)
    assert clock.slept == []


def test_no_credentials_at_all(clock, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(MirrorFault, match="Unable to locate credentials"):
        Mirror.open(URL, RUN_ID, clock).list()
    assert clock.slept == []


# --- a server that is overloaded, and one that is gone


class Gate(BaseHTTPRequestHandler):
    """Passes requests on to the server, except the first ``refuse`` of those whose path contains ``about``: 503."""

    upstream = ""
    refuse = 0
    about = ""
    refused = 0
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.about in self.path and self.refused < self.refuse:
            type(self).refused += 1
            self.answer(503, [], b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>")
            return
        connection = HTTPConnection(self.upstream)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():  # the host too: it is signed
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        kept = [
            (n, v) for n, v in response.getheaders() if n.lower() not in ("transfer-encoding", "connection", "content-length")
        ]
        length = response.getheader("Content-Length") if self.command == "HEAD" else None
        self.answer(response.status, kept, response.read(), length)
        connection.close()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes, length: str | None = None) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments) -> None:
        pass


@pytest.fixture
def gate(server, monkeypatch):
    class Own(Gate):
        upstream = server.endpoint.removeprefix("http://")

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    thread = Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{listener.server_port}")
    yield Own
    listener.shutdown()
    listener.server_close()
    thread.join()


def test_a_server_that_is_overloaded_for_a_while(gate, run, clock):
    name = save_two(run, 1, 2)
    gate.about, gate.refuse = DATA[0], 5
    mirror = Mirror.open(URL, RUN_ID, clock)
    mirror.put(run.checkpoints / name)
    assert gate.refused == 5
    assert clock.slept == [1.0, 2.0], "after two tries of s3fs each"
    assert mirror.verify(name).ok


def test_a_server_that_stays_overloaded(gate, run, clock):
    gate.about, gate.refuse = RUN_ID, 10**9
    with pytest.raises(MirrorFault, match="Please reduce your request rate") as caught:
        Mirror.open(URL, RUN_ID, clock).put(run.checkpoints / save_two(run, 1, 2))
    assert f"mirror: {URL}; tried 5 times" in str(caught.value)
    assert clock.slept == [1.0, 2.0, 4.0, 8.0]


def test_a_server_that_is_gone(mirror, run, clock, monkeypatch):
    names = [save_two(run, 1, step) for step in (10, 20)]
    mirror.put(run.checkpoints / names[1])
    flip_bit(run.checkpoints / names[1] / DATA[0], 1000)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    gone = Mirror.open(URL, RUN_ID, clock)
    choice = choose_with_mirror(run, chain_of(run), gone)
    assert choice.checkpoint == names[0]
    assert "out of reach" in choice.notes[0]
    flip_bit(run.checkpoints / names[0] / DATA[0], 1000)
    with pytest.raises(EnvironmentFault, match="Could not connect"):
        choose_with_mirror(run, chain_of(run), gone)
    assert choose_with_mirror(run, chain_of(run), mirror).checkpoint == names[1], "and back"

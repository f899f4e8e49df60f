"""The single checks of a node: each measures one thing, within bounds of time and size, and judges it by a stated rule.

A check that finds wrong values fails: such a node must not train. What is only slow, scarce or unknown is a warning.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import resource
import secrets
import shutil
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from headway.base.clocks import SystemClock
from headway.base.units import format_bytes
from headway.rundir.heartbeats import now_ns

PASS, WARN, FAIL, LEFT_OUT = "pass", "warn", "fail", "left out"

KNOWN_ANSWER = "9c229df3350cfb00"
"""Of ``_chain``: integers alone, so it is the same on every healthy machine."""
SIDE, ROUNDS = 96, 4
MIB, GIB = 2**20, 2**30
SLICE = 32 * MIB
SLOW_MEMORY, SLOW_DISK, SLOW_FSYNC_SECONDS, SLOW_LOOPBACK = 1.0 * GIB, 50 * MIB, 0.5, 100 * MIB
"""Per second: below it a warning."""
FREE_FAIL, FREE_WARN = 1 * GIB, 20 * GIB
FILES_FAIL, FILES_WARN, SHM_WARN = 256, 4096, 1 * GIB
DRIFT_WARN, EARLIEST_REAL_NS = 1e-3, 1_735_689_600 * 10**9
_PATTERNS = (0x5555555555555555, 0xAAAAAAAAAAAAAAAA, 0x0000000000000000, 0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True, kw_only=True)
class Check:
    """``measured``: in words; ``numbers``: the same for programs. ``way_out``: empty where nothing is to be done."""

    name: str
    verdict: str
    measured: str
    rule: str
    way_out: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)


def known_answers() -> Check:
    """On each core that may be used, integers and whole floats: a wrong bit is a wrong core."""
    cores, wrong = sorted(os.sched_getaffinity(0)), list[int]()

    def try_cores() -> None:  # in a thread of its own: its affinity is nobody else's
        for core in cores:
            with contextlib.suppress(OSError):  # taken away meanwhile
                os.sched_setaffinity(0, {core})
            if _chain() != KNOWN_ANSWER:
                wrong.append(core)

    thread = threading.Thread(target=try_cores)
    thread.start()
    thread.join()
    rule = "matrix products of whole numbers have one exact result, by integers and by floats in another order"
    numbers = {"cores": len(cores), "wrong_cores": wrong}
    if wrong:
        told = f"wrong result on {len(wrong)} of {len(cores)} cores: {', '.join(map(str, wrong[:16]))}"
        way_out = "take the node out of service and have its processor tested; results of runs on it are in doubt"
        return Check(name="arithmetic", verdict=FAIL, measured=told, rule=rule, way_out=way_out, numbers=numbers)
    return Check(name="arithmetic", verdict=PASS, measured=f"right on {len(cores)} cores", rule=rule, numbers=numbers)


def _chain() -> str:
    """A digest of products of products, below 2^31; "" where float arithmetic disagrees with integer arithmetic."""
    place = np.arange(SIDE * SIDE, dtype=np.int64).reshape(SIDE, SIDE)
    a, b = (place * 2_654_435_761 + 12_345) % 1021, (place * 40_503 + 977) % 1019
    digest = xxhash.xxh3_64()
    for _ in range(ROUNDS):
        product = a @ b
        floats = np.einsum("ij,kj->ik", a[::-1, ::-1].astype(np.float64), b.T[:, ::-1].astype(np.float64))[::-1]
        if not np.array_equal(floats, product.astype(np.float64)):
            return ""
        digest.update(product.astype("<i8").tobytes())
        a, b = product % 1021, (product.T + b) % 1019
    return digest.hexdigest()


def memory(size: int, seconds: float) -> Check:
    """Patterns and their complements, written and read back; and what the memory controller has counted."""
    size = max(8 * MIB, min(size, _available() // 4)) // SLICE * SLICE or 8 * MIB
    began, held, tested, wrong = time.monotonic(), list[np.ndarray](), 0, 0
    while tested < size and (tested == 0 or time.monotonic() - began < seconds):
        held.append(np.empty(min(SLICE, size) // 8, dtype=np.uint64))  # kept, so that the next one lies elsewhere
        wrong += sum(_wrong_words(held[-1], pattern, tested) for pattern in _PATTERNS)
        tested += held[-1].nbytes
    rate = 2 * len(_PATTERNS) * tested / (time.monotonic() - began)
    counted = {name: _counted(name) for name in ("ue_count", "ce_count")}
    numbers = {"bytes": tested, "patterns": len(_PATTERNS), "wrong_words": wrong, "bytes_per_second": round(rate), **counted}
    measured = f"{format_bytes(tested)} by {len(_PATTERNS)} patterns, {wrong} wrong words, {format_bytes(rate)}/s"
    rule = f"every word reads back as written; no error that was not corrected; at least {format_bytes(SLOW_MEMORY)}/s"
    if wrong or counted["ue_count"]:
        measured += f", {counted['ue_count']} uncorrected errors counted" if counted["ue_count"] else ""
        way_out = "take the node out of service and test its memory (memtest86+, EDAC counters)"
        return Check(name="memory", verdict=FAIL, measured=measured, rule=rule, way_out=way_out, numbers=numbers)
    if counted["ce_count"]:
        measured += f", {counted['ce_count']:,} corrected errors counted"
        way_out = "watch /sys/devices/system/edac: a module that is corrected often fails soon"
        return Check(name="memory", verdict=WARN, measured=measured, rule=rule, way_out=way_out, numbers=numbers)
    slow = rate < SLOW_MEMORY
    way_out = "see what else runs on this node" if slow else ""
    return Check(name="memory", verdict=WARN if slow else PASS, measured=measured, rule=rule, way_out=way_out, numbers=numbers)


def _wrong_words(block: np.ndarray, pattern: int, start: int) -> int:
    """Words that do not read back what was written: ``pattern`` mixed with their own place, so that no two are alike."""
    index = np.arange(start, start + len(block), dtype=np.uint64)
    np.bitwise_xor(index, np.uint64(pattern), out=block)
    return int(np.count_nonzero(block ^ np.uint64(pattern) != index))


def disk(directory: Path, size: int) -> Check:
    """A file written, made durable, read back from the device where the system lets go of its pages, and compared."""
    rule = (
        f"what is written reads back; at least {format_bytes(FREE_FAIL)} free, better {format_bytes(FREE_WARN)}; "
        f"{format_bytes(SLOW_DISK)}/s; a small fsync within {SLOW_FSYNC_SECONDS:g} s"
    )
    path = directory / f".headway-doctor-{secrets.token_hex(6)}"
    try:
        free = shutil.disk_usage(directory).free
        size = min(size, max(MIB, free // 8))
        written = _write_and_read(path, size)
    except OSError as error:
        told = f"{directory}: {error.strerror or error}"
        way_out = "give a directory of a healthy file system with room, and the right to write there"
        return Check(name="disk", verdict=FAIL, measured=told, rule=rule, way_out=way_out, numbers={"error": str(error)})
    finally:
        with contextlib.suppress(OSError):  # where it could not be written, it cannot be removed
            path.unlink(missing_ok=True)
    same, write_rate, read_rate, fsync_seconds = (written[key] for key in ("same", "write", "read", "fsync_seconds"))
    numbers = {"directory": str(directory), "bytes": size, "free_bytes": free, "fsync_seconds": round(fsync_seconds, 5)}
    numbers |= {"write_bytes_per_second": round(write_rate), "read_bytes_per_second": round(read_rate), "same": same}
    measured = (
        f"{directory}: {format_bytes(size)} written at {format_bytes(write_rate)}/s, read at {format_bytes(read_rate)}/s, "
        f"fsync {1000 * fsync_seconds:.1f} ms, {format_bytes(free)} free"
    )
    verdict, way_out = PASS, ""
    if not same or free < FREE_FAIL:
        verdict = FAIL
        way_out = (
            "make room, or use another directory" if same else "replace the device: it returns other bytes than it was given"
        )
        measured += "" if same else "; read back OTHER bytes"
    elif free < FREE_WARN or write_rate < SLOW_DISK or fsync_seconds > SLOW_FSYNC_SECONDS:
        verdict, way_out = WARN, "make room, or put checkpoints on a faster file system"
    return Check(name="disk", verdict=verdict, measured=measured, rule=rule, way_out=way_out, numbers=numbers)


def _write_and_read(path: Path, size: int) -> dict[str, Any]:
    """``size`` bytes that do not compress, in pieces of 1 MiB; rates in bytes per second, durable for writing."""
    piece = np.random.default_rng().bytes(MIB)
    wrote, read = hashlib.blake2b(), hashlib.blake2b()
    began = time.monotonic()
    with open(path, "xb") as file:
        for place in range(size // MIB):
            data = struct.pack("<Q", place) + piece[8:]
            wrote.update(data)
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
        write_seconds = time.monotonic() - began
        with contextlib.suppress(OSError, AttributeError):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.monotonic()
        file.write(b"\0" * 4096)
        file.flush()
        os.fsync(file.fileno())
        fsync_seconds = time.monotonic() - began
    began = time.monotonic()
    with open(path, "rb") as file:
        for _ in range(size // MIB):
            read.update(file.read(MIB))
    whole = size // MIB * MIB
    rates = {"write": whole / max(write_seconds, 1e-9), "read": whole / max(time.monotonic() - began, 1e-9)}
    return {"same": wrote.digest() == read.digest(), "fsync_seconds": fsync_seconds, **rates}


def network(size: int, seconds: float) -> Check:
    """Bytes through the loopback interface, which ranks of one machine use, and how long one byte takes there and back."""
    rule = f"what is sent arrives unchanged; at least {format_bytes(SLOW_LOOPBACK)}/s through the loopback interface"
    try:
        sent, got, rate, trip = _through_loopback(size, seconds)
    except OSError as error:
        way_out = "bring the interface up: ip link set lo up; and see the firewall's rules for 127.0.0.1"
        told = f"127.0.0.1: {error.strerror or error}"
        return Check(name="network", verdict=FAIL, measured=told, rule=rule, way_out=way_out, numbers={"error": str(error)})
    numbers = {"bytes": size, "bytes_per_second": round(rate), "round_trip_seconds": round(trip, 7), "same": sent == got}
    measured = f"loopback {format_bytes(rate)}/s, {1e6 * trip:.0f} us there and back"
    if sent != got:
        way_out = "take the node out of service: its memory or its kernel changes data"
        return Check(name="network", verdict=FAIL, measured=measured, rule=rule, way_out=way_out, numbers=numbers)
    slow = rate < SLOW_LOOPBACK
    way_out = "see what else runs on this node, and whether traffic on lo is filtered" if slow else ""
    return Check(name="network", verdict=WARN if slow else PASS, measured=measured, rule=rule, way_out=way_out, numbers=numbers)


def _through_loopback(size: int, seconds: float) -> tuple[str, str, float, float]:
    """Digests of what was sent and what arrived, bytes per second, seconds of a round trip (median)."""
    piece, deadline = np.random.default_rng().bytes(MIB), time.monotonic() + seconds
    sent, got = hashlib.blake2b(), hashlib.blake2b()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(seconds + 5.0)

        def receive() -> None:
            with contextlib.suppress(OSError), server.accept()[0] as there:
                for _ in range(100):
                    there.sendall(there.recv(1))
                while data := there.recv(MIB):
                    got.update(data)

        thread = threading.Thread(target=receive, daemon=True)
        thread.start()
        with socket.create_connection(server.getsockname(), timeout=seconds + 5.0) as here:
            here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            trips = []
            for _ in range(100):
                began = time.monotonic()
                here.sendall(b"x")
                here.recv(1)
                trips.append(time.monotonic() - began)
            began, passed = time.monotonic(), 0
            while passed < size and time.monotonic() < deadline:
                here.sendall(piece)
                sent.update(piece)
                passed += MIB
        thread.join(seconds + 5.0)
    return sent.hexdigest(), got.hexdigest(), passed / max(time.monotonic() - began, 1e-9), sorted(trips)[50]


def clock(seconds: float) -> Check:
    """Realtime and the monotonic clock against the boot clock over ``seconds``, core by core; whether something keeps time."""
    cores, before = sorted(os.sched_getaffinity(0)), _both_clocks()
    backwards, last = 0, time.monotonic_ns()
    began, mine = time.monotonic(), os.sched_getaffinity(0)
    try:
        while time.monotonic() - began < seconds:
            for core in cores:
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(0, {core})
                now = time.monotonic_ns()
                backwards, last = backwards + (now < last), now
            time.sleep(0.01)
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, mine)
    after, then = SystemClock().stamp(), _both_clocks()
    drift = (then[1] - before[1]) / (then[0] - before[0]) - 1
    told = _kernel_time()
    numbers = {"boot_id": after.boot_id, "backwards": backwards, "drift": drift, "real_ns": after.real_ns, **told}
    synchronised = {True: "synchronised", False: "not synchronised", None: "synchronisation unknown"}[told["synchronised"]]
    measured = f"realtime runs {1e6 * drift:+.0f} ppm against the boot clock, {synchronised}, boot {after.boot_id[:8]}"
    rule = f"no clock goes back; realtime within {1e6 * DRIFT_WARN:.0f} ppm of the boot clock and kept by NTP or PTP"
    if backwards or after.real_ns < EARLIEST_REAL_NS:
        measured += f"; the monotonic clock went back {backwards} times" if backwards else "; realtime lies before 2025"
        way_out = "set the clock (chronyc makestep), or choose another clock source: /sys/devices/system/clocksource"
        return Check(name="clock", verdict=FAIL, measured=measured, rule=rule, way_out=way_out, numbers=numbers)
    if abs(drift) > DRIFT_WARN or told["synchronised"] is False:
        way_out = "start chronyd or systemd-timesyncd. No decision of a run compares clocks of hosts, but people read the stamps"
        return Check(name="clock", verdict=WARN, measured=measured, rule=rule, way_out=way_out, numbers=numbers)
    return Check(name="clock", verdict=PASS, measured=measured, rule=rule, numbers=numbers)


def _both_clocks() -> tuple[int, int]:
    """Boot clock and realtime of one moment, ns: the pair that was read closest together."""
    pairs = []
    for _ in range(20):
        before, real, after = now_ns(), time.time_ns(), now_ns()
        pairs.append((after - before, (before + after) // 2, real))
    _, boot, real = min(pairs)
    return boot, real


def _kernel_time() -> dict[str, Any]:
    """adjtimex, reading alone: whether something keeps the clock, and the largest error it admits."""
    buffer = ctypes.create_string_buffer(512)  # struct timex: modes, offset, freq, maxerror, esterror, status, ...
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        state = -1
    if state < 0:
        return {"synchronised": None}
    _, _, _, largest_us, _, status = struct.unpack_from("@iqqqqi", buffer.raw)
    return {"synchronised": not status & 0x40, "largest_error_seconds": largest_us / 1e6}


def limits() -> Check:
    """Open files, shared memory, processes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    shm = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0
    numbers = {"open_files": soft, "open_files_hard": hard, "shm_free_bytes": shm, "processes": processes}
    measured = f"{soft:,} open files (at most {hard:,}), {format_bytes(shm)} free in /dev/shm"
    rule = f"at least {FILES_WARN:,} open files ({FILES_FAIL} to work at all) and {format_bytes(SHM_WARN)} of shared memory"
    ways = []
    if 0 <= soft < FILES_WARN:
        ways.append(f"ulimit -n {max(FILES_WARN, 65_536)} (in a unit: LimitNOFILE=)")
    if shm < SHM_WARN:
        ways.append("a larger /dev/shm (docker run --shm-size=8g); checkpoints do without it, device libraries do not")
    verdict = FAIL if 0 <= soft < FILES_FAIL else WARN if ways else PASS
    return Check(name="limits", verdict=verdict, measured=measured, rule=rule, way_out="; ".join(ways), numbers=numbers)


def _available() -> int:
    """Bytes of memory that may be taken now, of this machine and of this control group."""
    found = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with contextlib.suppress(OSError, ValueError):
        root = Path("/sys/fs/cgroup")
        found.append(int((root / "memory.max").read_text()) - int((root / "memory.current").read_text()))
    return max(0, min(found))


def _counted(name: str) -> int | None:
    """Errors since boot, of all memory controllers; None: nobody counts."""
    counts = [count for path in Path("/sys/devices/system/edac/mc").glob(f"mc*/{name}") for count in _number(path)]
    return sum(counts) if counts else None


def _number(path: Path) -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError):
        yield int(path.read_text())

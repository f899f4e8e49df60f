"""A torn tail loses at most its own line (E4); altered lines are found; one writer may follow another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.base.errors import EnvironmentFault
from headway.base.records import RecordTail, RecordWriter, decode_record, encode_record, read_records

VALUES = [{"step": 1, "loss": 3.5}, {"step": 2, "text": "naïve\nline"}, {"step": 3}]


def write(path, values):
    writer = RecordWriter(path)
    for value in values:
        writer.append(value)
    writer.close()


def test_round_trip(tmp_path):
    write(tmp_path / "r", VALUES)
    assert read_records(tmp_path / "r").records == VALUES


def test_absent_file_has_no_records(tmp_path):
    assert read_records(tmp_path / "absent").records == []


def test_E4_torn_at_every_byte_loses_at_most_one_line(tmp_path):
    whole = b"".join(encode_record(value) for value in VALUES)
    ends = [len(b"".join(encode_record(v) for v in VALUES[: n + 1])) for n in range(len(VALUES))]
    for cut in range(len(whole) + 1):
        path = tmp_path / "torn"
        path.write_bytes(whole[:cut])
        expected = VALUES[: sum(end - 1 <= cut for end in ends)]  # the newline itself may be missing
        assert read_records(path).records == expected
        write(path, [{"step": 99}])
        assert read_records(path).records == [*expected, {"step": 99}]


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_one_altered_byte_never_passes(position, flip):
    line = bytearray(encode_record(VALUES[0])[:-1])
    line[position % len(line)] ^= flip
    decoded = decode_record(bytes(line))
    assert decoded is None or decoded == VALUES[0]  # equal only for another spelling of the same header digits


def test_not_a_number_is_refused(tmp_path):
    writer = RecordWriter(tmp_path / "r")
    with pytest.raises(ValueError):
        writer.append({"loss": float("nan")})


def test_tail_sees_each_record_once_and_only_when_whole(tmp_path):
    path, lines = tmp_path / "r", [encode_record(value) for value in VALUES]
    tail = RecordTail(path)
    assert list(tail.poll()) == []
    path.write_bytes(lines[0] + lines[1][:7])
    assert list(tail.poll()) == VALUES[:1]
    with path.open("ab") as file:
        file.write(lines[1][7:] + lines[2])
    assert list(tail.poll()) == VALUES[1:]
    assert list(tail.poll()) == []


def test_file_of_durable_records_is_itself_durable(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("headway.base.records.fsync_directory", synced.append)
    RecordWriter(tmp_path / "steps.jsonl").close()
    assert synced == []
    RecordWriter(tmp_path / "events.jsonl", durable=True).close()
    assert synced == [tmp_path]


@pytest.mark.parametrize("value", [5, "text", [1], None, True])
def test_a_whole_line_that_is_no_object_is_damaged(tmp_path, value):
    write(tmp_path / "r", [*VALUES, value])
    read = read_records(tmp_path / "r")
    assert (read.records, read.damaged_lines) == (VALUES, 1)
    assert list(RecordTail(tmp_path / "r").poll()) == VALUES


def test_a_fresh_writer_refuses_a_file_that_exists(tmp_path):
    write(tmp_path / "r", VALUES)
    with pytest.raises(EnvironmentFault, match="exists"):
        RecordWriter(tmp_path / "r", fresh=True)
    assert read_records(tmp_path / "r").records == VALUES

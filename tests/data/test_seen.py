"""The table of texts seen so far answers as a dictionary would, in a file."""

from __future__ import annotations

import random

import pytest

from headway.data.seen import Seen


@pytest.mark.parametrize("in_file", [True, False])
def test_it_answers_as_a_dictionary_would(tmp_path, in_file):
    generator, known = random.Random(0), {}
    seen = Seen(tmp_path / "seen" if in_file else None)
    for _ in range(40_000):
        digest = generator.randrange(25_000).to_bytes(8, "little") * 2  # neighbours in the table
        source = generator.randrange(3)
        assert seen.holder(digest, source) == known.get(digest)
        known.setdefault(digest, source)
    assert len(known) > 15_000
    seen.close()
    assert not (tmp_path / "seen").exists()


def test_digests_that_share_their_first_bytes_are_told_apart():
    seen = Seen()
    digests = [b"\xff" * 8 + n.to_bytes(8, "little") for n in range(100)]
    assert [seen.holder(digest, 65_534) for digest in digests] == [None] * 100
    assert [seen.holder(digest, 0) for digest in digests] == [65_534] * 100


def test_a_table_that_was_left_behind_is_replaced(tmp_path):
    (tmp_path / "seen").write_bytes(b"\xff" * 100_000)
    seen = Seen(tmp_path / "seen")
    assert seen.holder(b"\xff" * 16, 0) is None
    seen.close()

"""The table of texts seen so far answers as a dictionary would, in a file."""

from __future__ import annotations

import errno
import os
import random

import pytest
from data_helpers import small_recipe, write_words

from headway.base.errors import EnvironmentFault
from headway.data.build import build_data
from headway.data.prepare.keys import KeyTable
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


def test_a_full_disk_is_an_error_and_no_signal(tmp_path, monkeypatch):
    asked = []

    def full(descriptor, start, size):
        asked.append(size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        KeyTable("keys", tmp_path)
    recipe = small_recipe([{"name": "a", "kind": "text-tree", "path": str(write_words(tmp_path / "a", 20))}])
    with pytest.raises(EnvironmentFault, match="free space on that filesystem"):
        build_data(recipe, tmp_path / "data")
    assert len(asked) == 2

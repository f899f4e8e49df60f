"""What a manifest says of a source beside its content: no label changes a digest, and all of them are under the seal."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from data_helpers import write_token_data

from headway.base.errors import EnvironmentFault
from headway.data.manifest import MANIFEST_FILE, DataManifest, SourceEntry, Synthetic

LABELS = {
    "quality": {"density": 0.5, "harm": 0.0},
    "synthetic": Synthetic({"program": "templates", "version": "2"}, {"program": "python", "what": "that it runs"}),
}


def labelled(manifest: DataManifest) -> DataManifest:
    source: SourceEntry = dataclasses.replace(manifest.sources[0], **LABELS).sealed()
    return dataclasses.replace(manifest, sources=(source, *manifest.sources[1:]))


def test_labels_are_kept_and_change_no_digest(tmp_path: Path):
    plain = write_token_data(tmp_path, [[[1, 2, 3]] * 4])
    labelled(plain).save(tmp_path)
    read = DataManifest.load(tmp_path)
    assert read.digest() == plain.digest()
    assert read.sources[0].digest == plain.sources[0].digest
    assert {name: getattr(read.sources[0], name) for name in LABELS} == LABELS


def test_a_label_that_was_changed_on_the_disk_is_seen(tmp_path: Path):
    labelled(write_token_data(tmp_path, [[[1, 2, 3]] * 4])).save(tmp_path)
    path = tmp_path / MANIFEST_FILE
    path.write_text(path.read_text().replace('"density": 0.5', '"density": 0.9'))
    with pytest.raises(EnvironmentFault, match="not as it was written"):
        DataManifest.load(tmp_path)


def test_a_manifest_from_before_there_were_labels_is_read(tmp_path: Path):
    write_token_data(tmp_path, [[[1, 2, 3]] * 4])
    path = tmp_path / MANIFEST_FILE
    value = json.loads(path.read_text())
    del value["seal"]
    for source in value["sources"]:
        for name in LABELS:
            del source[name]
    path.write_text(json.dumps(value))
    read = DataManifest.load(tmp_path).sources[0]
    assert (read.quality, read.synthetic) == ({}, None)

"""What the stored checkpoints themselves say."""

from __future__ import annotations

import math

from headway.base.errors import HeadwayError
from headway.report.rows import Save
from headway.rundir.layout import RunDirectory
from headway.store.manifest import join_chunks, load_manifest, load_receipt


def stored_parameters(run: RunDirectory, saves: tuple[Save, ...]) -> int | None:
    """Elements of all ``param/`` tensors of the newest checkpoint whose manifest and receipts read well."""
    for save in reversed(saves):
        directory = run.checkpoints / save.checkpoint
        if not save.present or directory.parent != run.checkpoints:
            continue
        try:
            manifest = load_manifest(directory)
            tensors = join_chunks([load_receipt(directory, ref.rank, ref.digest) for ref in manifest.receipts])
        except HeadwayError:
            continue
        return sum(math.prod(entry.shape) for name, entry in tensors.items() if name.startswith("param/"))
    return None

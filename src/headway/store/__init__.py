"""Checkpoints on disk: manifests, the save transaction, verification, admissibility, retention. No torch."""

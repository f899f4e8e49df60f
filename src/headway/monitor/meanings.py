"""What each category of time is, in words."""

from __future__ import annotations

MEANINGS = {
    "queue": "waiting for machines, in the queue of a scheduler",
    "provision": "from the owner's first record to the first launch",
    "init": "process start, data, model",
    "compile": "compilation",
    "restore": "loading a checkpoint, verifying what is read",
    "data_stall": "waiting for input",
    "productive": "updates that the run kept",
    "blocking_save": "training stood still for a save",
    "evaluation": "held-out loss and samples",
    "validation_replay": "replay to check a repair",
    "hang": "no progress, until it was declared",
    "detection_to_stop": "from the trainer's last record until its end was known",
    "reconfigure": "between two attempts, and orderly ends",
    "planned_pause": "stopped on purpose",
    "unknown": "nobody was there to record",
    "rolled_back": "updates that a later restore went back behind, to be done again",
    "skipped": "work on batches that were left out, and updates that were not applied",
}

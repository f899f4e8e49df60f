"""The process that turns snapshots into checkpoints, and the trainer's side of it. Start with serve.py."""

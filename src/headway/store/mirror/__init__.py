"""The second place for committed checkpoints: a shared directory or object storage. Start with mirror.py."""

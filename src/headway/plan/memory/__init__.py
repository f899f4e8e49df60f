"""Bytes of a rank in each pipeline stage, by component."""

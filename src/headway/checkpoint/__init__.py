"""Tensors <-> store: rectangles, save, load, digest."""

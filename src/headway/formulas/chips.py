"""Accelerators, as arithmetic uses them. The table stands in ``recipe/chips.py``: deployments name its chips."""

from headway.recipe.chips import CHIPS, Chip, check_peak, dense_peak, find_chip, known_chip

__all__ = ["CHIPS", "Chip", "check_peak", "dense_peak", "find_chip", "known_chip"]

"""Interruptions: formulas side by side, and whole runs simulated."""

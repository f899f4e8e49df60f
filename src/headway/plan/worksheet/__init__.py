"""A reservation split into shares, and what a run costs."""

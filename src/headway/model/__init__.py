"""The decoder, its initialisation, its loss and its compute precision: the mathematics of a run (torch)."""

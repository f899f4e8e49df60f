"""The one door to everything that needs torch: ``python -m headway.engine VERB``."""

"""Headway plans, runs and watches the pretraining of language models."""

__version__ = "0.1.0"

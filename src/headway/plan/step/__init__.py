"""Seconds and bytes on the wire of one optimizer step: what is cut where, communicates, computes, and how long it takes."""

"""Arithmetic that both lanes need: parameters, FLOPs, memory, checkpoint intervals, failures. Each formula has one home."""

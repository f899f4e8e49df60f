"""Proof that layouts do not change the mathematics: a small model of the recipe's architecture under each, against one process.

miniature.py   the recipe's architecture, small        batches.py   batches that are hard to divide
rank.py        what a rank measures                    compare.py   against one process, with tolerances
"""

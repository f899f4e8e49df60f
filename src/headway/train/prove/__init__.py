"""Proof that layouts do not change the mathematics: a small model of the recipe's architecture under each, against one process.

proof.py       the whole of it, record by record       layouts.py        which layouts: a table
miniature.py   the recipe's architecture, small        batches.py        batches that are hard to divide
rank.py        what a rank measures                    compare.py        against one process, with tolerances
                                                       continuation.py   killed, and gone on from a checkpoint
"""

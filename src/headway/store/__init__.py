"""Checkpoints on disk. No torch.

format   names, manifest, rectangle, coverage                    what lies in the files
save     save, durable           -> writer/                      the transaction; the process that carries it out
load     verify, assemble, readahead                             bytes with proof, any layout into any other
decide   admissible              -> mirror/                      which one a run goes on from, here or in the second place
keep     policy, stock, retention, deletion, kept                which may go, and how
look     listing, audit, compare, decode                         for people
"""

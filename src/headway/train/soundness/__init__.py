"""Whether the machine computes what it was told to: silent corruption found, its rank and its parameter named (R55, P7).

check.py       the loop's part: what is due when, and what follows         exchanges.py   what a rank sends, written down
repeat.py      a step carried out again from the state before it           culprit.py     who brought something else first
trail.py       evidence that lets the next attempt say where it began      finding.py     what was found, as an error

    replicas   copies that ranks hold of the same values, compared bit by bit: any flip that stays in weights or moments
    repeat     the same step twice: what went wrong while it was computed, under any layout, also alone

A repeat sees the step that it repeats; what happens in others is seen by replicas, or not at all.
"""

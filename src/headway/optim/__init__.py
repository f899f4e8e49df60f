"""What turns gradients into an update (torch).

build         groups by recipe/mup.py          Optimizer: rate, step, the tensors that a checkpoint holds
fused_adamw   AdamW by torch's fused kernel    muon   orthogonal updates of matrices
clip          the norm of the whole gradient   guard  which gradients may change anything
home          where moments lie between updates

One update, nothing of which waits for the device before it is under way:

    clip = clip_by_norm(parameters, limit)       norm, on the device
    bad = guard.judge(clip.norm)                 not finite, or far above the recent ones
    optimizer.set_rate(rate)
    optimizer.step(bad)                          where bad: weights, moments and counts stay as they are, bit for bit
    clip.read(bad)                               numbers for the record: the one transfer

"""

KINDS = {
    "adamw": "AdamW for every parameter",
    "muon": "Muon for the matrices of the blocks, AdamW for the rest",
}
"""What ``optimizer.kind`` can be."""

"""The same mathematics under every layout: mesh, sharded states, divided layers, sums over ranks.

mesh.py    axes and groups                        divide.py   which parameter is cut along which dimension
model.py   the model of a rank                    tensor.py   exchanges of tensor and sequence parallelism
state.py   its part of the state, as tensors of the whole     sums.py     over the ranks that have rows of their own
stages.py  which pieces of it a pipeline rank holds           pipeline.py   micro-batches through the pieces
schedule.py  torch's order of them
pool.py    local processes as ranks, for proofs
"""

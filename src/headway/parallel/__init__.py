"""The same mathematics under every layout: mesh, sharded states, divided layers, sums over ranks.

mesh.py    axes and groups                        divide.py   which parameter is cut along which dimension
model.py   the model of a rank                    tensor.py   exchanges of tensor and sequence parallelism
expert.py  rows on their way to experts of other ranks        sums.py     over the ranks that have rows of their own
state.py   its part of the state, as tensors of the whole
pool.py    local processes as ranks, for proofs
"""

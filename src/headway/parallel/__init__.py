"""The same mathematics under every layout: mesh, sharded states, divided layers, sums over ranks.

mesh.py       axes and groups              layout.py     what fits which model, batch and world
tensor.py     tensor and sequence parallel  divide.py    which parameter is cut along which dimension
model.py      the sharded model of a rank   state.py     its part of the state, as tensors of the whole
sums.py       losses, loads and norms over all ranks
"""

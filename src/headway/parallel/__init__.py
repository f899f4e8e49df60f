"""The same mathematics under every layout: mesh, sharded states, divided layers, sums over ranks.

mesh.py    axes and groups                      divide.py             which parameter is cut along which dimension
model.py   the model of a rank                  tensor.py             exchanges of tensor and sequence parallelism
state.py   its part of the state                context_parallel.py   chunks of rows, and whole rows of keys and values
sums.py    over the ranks that have own rows    expert.py             rows on their way to experts of other ranks
stages.py  which pieces a pipeline rank holds   pipeline.py           the model of a rank that holds pieces
group.py   how ranks meet, and wait             schedule.py           torch's order of micro-batches through them
shared_memory.py  messages on one machine       host_exchange.py      gathers and sums of states through it, or through gloo
local_ranks.py  new processes as ranks, for proofs
"""

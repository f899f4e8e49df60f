"""A step at its real size on ranks that are not there: the model's own code over tensors without values, in one process.

run.py        sizes, passes and depths that are run; what follows for the whole step and the whole model
shapes.py     the model of a rank with sizes alone
pipelined.py  the same for a pipeline's chunks, under torch's schedules
host.py       what would go to host memory and back
seen.py       every exchange and product as it is dispatched
"""

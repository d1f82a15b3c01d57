"""The systems that `step.py` compares: one module each.

A contender's module has ``prepare(workload, threads) -> step``: it reads the workload's files,
builds its training step, and returns a function that makes one step on the workload's batch and
returns the loss before the step as a float. It imports its libraries when it is imported itself,
so that the memory they take counts as baseline. ``INCLUDES`` says what a step does.
"""

CONTENDERS = {
    "graphgrad": "contenders.ours",
    "torch": "contenders.torch_eager",
    "tvm": "contenders.stock_tvm",
}

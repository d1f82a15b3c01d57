"""Loss, optimizer, training step and its state.

Start with `step`, what a user calls, and `update`, the step as one Relax function. `recipe` is what
a step is before it has shapes, `run` the training loop, `export` writes a step for `runtime`.
"""

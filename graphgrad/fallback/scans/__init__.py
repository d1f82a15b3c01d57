"""Gradients and kernels of loops in time.

Start with `scan`: the step of a scan, and its gradient as a scan backwards in time. `checkpoints`
keeps fewer states.
"""

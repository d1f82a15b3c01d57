"""Passes over the graph, before ops become kernels.

Start with `legalize`, the last of them, which makes kernels of ops.
"""

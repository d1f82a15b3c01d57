"""Passes over the graph, before ops become kernels."""

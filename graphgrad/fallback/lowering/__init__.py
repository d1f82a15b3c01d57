"""Kernels of graphs of stages, with what TVM lowers wrongly rewritten before.

Start with `prim_func`, which takes the place of ``te.create_prim_func`` and calls the others.
"""

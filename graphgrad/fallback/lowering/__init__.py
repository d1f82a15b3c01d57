"""Kernels of graphs of stages, with what TVM lowers wrongly rewritten before."""

"""Analyses and rewrites of kernels that fusion and the schedules of all targets share.

Start with `contraction` and `epilogue`, which recognize in stages what they compute.
"""

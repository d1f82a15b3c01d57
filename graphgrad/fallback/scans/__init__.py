"""Gradients and kernels of loops in time."""

"""Kernels made of tensor expressions, and the kernels of their gradients."""

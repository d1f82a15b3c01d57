"""Kernels raised to tensor expressions: what loops over buffers compute, element by element."""

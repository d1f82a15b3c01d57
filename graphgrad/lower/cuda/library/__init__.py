"""Contractions that a library of NVIDIA's computes: which, by which plan, made without a GPU."""

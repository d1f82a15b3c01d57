"""Gradients of reductions."""

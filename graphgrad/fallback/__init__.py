"""Gradients synthesised from tensor expressions: empty so far."""

"""Gradients synthesised from tensor expressions."""

"""Arithmetic of several operands, powers and clipping."""

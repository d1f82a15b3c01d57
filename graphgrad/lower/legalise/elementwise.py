"""Lowerings of elementwise ops."""

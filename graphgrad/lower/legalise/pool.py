"""Lowerings of pooling."""

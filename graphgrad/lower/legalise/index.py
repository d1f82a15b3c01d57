"""Lowerings of gather, scatter and sort."""

"""Losses that stand in the graph."""

"""Lowerings of ops that move elements."""

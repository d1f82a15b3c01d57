"""Lowerings of normalisations."""

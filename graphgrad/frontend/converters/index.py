"""Gather, scatter, sort and cumulative operators."""

"""Dropout and random numbers."""

"""Operators that move, repeat and cut elements."""

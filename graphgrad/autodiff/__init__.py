"""Reverse-mode differentiation of Relax functions."""

"""Convolutions, with every form of padding."""

"""Compiled programs, kept from one process to the next: what a program needs is made once."""

from .executable import compiled_once

__all__ = ["compiled_once"]

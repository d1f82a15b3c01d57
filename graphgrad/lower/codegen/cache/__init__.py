"""Compiled programs, kept from one process to the next: what a program needs is made once.

Start with `executable`; `key` says what a program depends on, `store` is the folder.
"""

from .executable import compiled_once

__all__ = ["compiled_once"]

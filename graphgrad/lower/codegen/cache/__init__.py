"""The cache of compiled programs: a program is compiled once, for this and for later processes.

Start with `executable`; `key` says what a program depends on, `store` is the folder.
"""

from .executable import compiled_once

__all__ = ["compiled_once"]

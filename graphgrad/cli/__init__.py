"""The command line.

Start with `main`: the arguments of all commands. Each command has a module of its name.
"""

from .main import main

__all__ = ["main"]

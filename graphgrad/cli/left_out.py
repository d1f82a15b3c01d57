"""Options that a command has, and one of its modes has no use for."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ..errors import ArgumentError


def check_left_out(mode: str, arguments: argparse.Namespace, defaults: Mapping[str, Any]) -> None:
    """Raise `ArgumentError` if an option is given that a mode would ignore.

    Parameters
    ----------
    mode : str
        What the mode does, for the error.
    arguments : Namespace
    defaults : mapping
        What the options are if they are not given, by their names in `arguments`.
    """
    for name, default in defaults.items():
        if (getattr(arguments, name) or None) != (default or None):
            raise ArgumentError(f"{mode}; leave --{name.replace('_', '-')} out")

"""Other frameworks, imported when a bridge to them is used."""

from __future__ import annotations

import importlib
import re
from types import ModuleType

from .errors import ArgumentError

LEAST = {"torch": (2, 6)}
"""The oldest release of each framework that its bridge was written for."""


def require(framework: str) -> ModuleType:
    """A framework, imported.

    Raises
    ------
    ArgumentError
        It is missing or too old; says which release is wanted, and how to install it.
    """
    least = ".".join(map(str, LEAST[framework]))
    remedy = f"pip install 'graphgrad[{framework}]'"
    try:
        module = importlib.import_module(framework)
    except ImportError as error:
        raise ArgumentError(
            f"the bridge to {framework} needs {framework} {least} or later, which cannot be "
            f"imported ({error}): {remedy}"
        ) from error
    version = tuple(map(int, re.findall(r"\d+", module.__version__)[:2]))
    if version < LEAST[framework]:
        raise ArgumentError(
            f"the bridge to {framework} needs {framework} {least} or later, but this is "
            f"{module.__version__}: {remedy}"
        )
    return module

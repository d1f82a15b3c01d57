"""Other frameworks, imported when a bridge to them is used."""

from __future__ import annotations

import importlib
import re
from importlib import metadata
from types import ModuleType

from .errors import ArgumentError

LEAST = {"jax": (0, 10), "jax_tvm_ffi": (0, 1), "torch": (2, 13)}
"""The oldest release of each framework with which its bridge was tested."""


def require(framework: str) -> ModuleType:
    """A framework, imported.

    Raises
    ------
    ArgumentError
        It is missing or too old; says which release is wanted, and how to install it.
    """
    least = ".".join(map(str, LEAST[framework]))
    extra = framework.partition("_")[0]
    remedy = f"pip install 'graphgrad[{extra}]'"
    try:
        module = importlib.import_module(framework)
    except ImportError as error:
        raise ArgumentError(
            f"the bridge to {framework} needs {framework} {least} or later, which cannot be "
            f"imported ({error}): {remedy}"
        ) from error
    text = getattr(module, "__version__", None) or metadata.version(framework)
    version = tuple(map(int, re.findall(r"\d+", text)[:2]))
    if version < LEAST[framework]:
        raise ArgumentError(
            f"the bridge to {framework} needs {framework} {least} or later, but this is "
            f"{text}: {remedy}"
        )
    return module

"""Gradient rules from other packages, found by entry points.

A package that brings rules names them in its ``pyproject.toml``::

    [project.entry-points."graphgrad.gradients"]
    my_ops = "my_package.gradients"

The value is a module, whose import registers the rules, or a function without arguments that does.
They are loaded when a rule is first asked for, once in a process.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from .errors import RuleError

GROUP = "graphgrad.gradients"

_LOADING: ContextVar[bool] = ContextVar("loading", default=False)


class Plugins:
    """The entry points of a group: those that were loaded, and those that are to be."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waiting: list[EntryPoint] | None = None

    def load(self) -> None:
        """Load every plug-in that is not loaded yet.

        Raises
        ------
        RuleError
            One cannot be loaded; names its distribution. It is tried again the next time, because
            without it a gradient might silently be another one.
        """
        # A plug-in that asks for a rule while it is loaded must not load the plug-ins again.
        if self._waiting == [] or _LOADING.get():
            return
        with self._lock:
            if self._waiting is None:
                self._waiting = sorted(entry_points(group=GROUP), key=_label)
            while self._waiting:
                # Removed only once it is loaded: after an error it is tried again.
                _load(self._waiting[0])
                del self._waiting[0]


PLUGINS = Plugins()


def is_loading() -> bool:
    """Whether the running code is that of a plug-in that is being loaded."""
    return _LOADING.get()


def _load(plugin: EntryPoint) -> None:
    """Load one plug-in, or raise `RuleError`."""
    token = _LOADING.set(True)
    try:
        loaded = plugin.load()
        if not isinstance(loaded, ModuleType):
            loaded()
    except Exception as error:
        raise RuleError(
            f"the plug-in {_label(plugin)} cannot be loaded: {type(error).__name__}: {error}; "
            "mend, update or uninstall that distribution"
        ) from error
    finally:
        _LOADING.reset(token)


def _label(plugin: EntryPoint) -> str:
    """A plug-in in words, with its distribution; plug-ins are loaded in the order of these."""
    origin = plugin.dist
    name = f"{origin.name} {origin.version}" if origin else "an unknown distribution"
    return f"{plugin.name!r} ({plugin.value}) of {name}"

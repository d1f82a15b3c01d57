"""Peers: libraries that tests compare against and that graphgrad itself does not need."""

import importlib
import os
from types import ModuleType


def required(name: str, is_there: bool) -> None:
    """Skip the test where something that is no module is missing; fail as `peer` does."""
    import pytest

    if not is_there and os.environ.get("GRAPHGRAD_REQUIRE_PEERS") == "1":
        pytest.fail(f"{name} is required but not installed")
    if not is_there:
        pytest.skip(f"{name} is not installed")


def peer(name: str) -> ModuleType:
    """Return the peer library, or skip the test or module; fail instead when peers are required.

    ``GRAPHGRAD_REQUIRE_PEERS=1`` says that a missing peer is a failure: continuous integration
    installs them all, so that no comparison is skipped unseen.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        import pytest  # outside tests nothing but the peer is needed

        if os.environ.get("GRAPHGRAD_REQUIRE_PEERS") == "1":
            pytest.fail(f"the peer library {name} is required but not installed")
        pytest.skip(f"the peer library {name} is not installed", allow_module_level=True)

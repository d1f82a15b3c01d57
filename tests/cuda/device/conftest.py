"""Tests here run on a CUDA device and are skipped where there is none.

`tests/cuda/test_on_emulator.py` runs them on an emulated one.
"""

import pytest

from graphgrad.lower.device import cuda_absence


@pytest.fixture(autouse=True, scope="session")
def cuda_device():
    absence = cuda_absence()
    if absence:
        pytest.skip(f"no CUDA device: {absence}")

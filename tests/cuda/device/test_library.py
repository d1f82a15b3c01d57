"""Networks whose contractions cuDNN computes, or on the emulated device NumPy in its place."""

import numpy as np
import pytest

import graphgrad as gg
from graphgrad.runtime.cudnn.backend import library_path
from tests.cuda.device.running import gpu, is_emulated
from tests.emulator.library import Library

if library_path() is None:
    pytest.skip("cuDNN is not installed", allow_module_level=True)


@pytest.fixture
def library():
    """The library; on the emulated device one that counts what it computes."""
    if not is_emulated():
        yield None
        return
    with Library() as counting:
        yield counting

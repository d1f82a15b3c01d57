import inner_loops
import pytest
from inner_loops import CASES, NEON

import graphgrad as gg


@pytest.mark.parametrize("name", CASES)
def test_most_instructions_on_neon_are_multiply_adds(name):
    loop = inner_loops.inner_loop(CASES[name](), gg.target(NEON))
    assert loop.share >= 0.8 and not loop.stack

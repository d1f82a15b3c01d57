"""Steps run early where that frees memory, and behind all that they depend on."""

import pytest

from graphgrad.memory.rematerialize import Program, Step
from graphgrad.memory.reorder import freeing_first
from tests.memory.line_programs import computed, training


@pytest.mark.parametrize("seed", range(12))
def test_steps_read_what_they_did(seed):
    sizes, steps = training(seed)
    order = freeing_first(sizes, steps)
    assert sorted(order) == list(range(len(steps)))
    before, after = Program.of(sizes, steps), Program.of(sizes, [steps[k] for k in order])

    def read_from(program, names):
        """By step, the steps that wrote what it reads."""
        reads = computed(program.whole)
        return {
            names[k]: {(names[v[0]], v[1]) if len(v) == 3 else v for v in values}
            for k, values in reads.items()
        }

    assert read_from(after, order) == read_from(before, range(len(steps)))
    impure = [k for k in order if not steps[k].is_pure]
    assert impure == sorted(impure)


def test_a_gradient_that_frees_its_operands_comes_early():
    """Step 4 is the last to read the large result of 0, and writes a small one."""
    sizes = [4096, 4096, 64, 64, 64]
    steps = [
        Step((), (0,), 1.0, True),
        Step((0,), (1,), 1.0, True),
        Step((1,), (2,), 1.0, True),
        Step((2,), (3,), 1.0, True),
        Step((0, 1), (4,), 1.0, True),
    ]
    assert freeing_first(sizes, steps) == [0, 1, 4, 2, 3]

"""Views of memory: their strides against those that NumPy finds, or finds not."""

import random

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from tvm import relax

from graphgrad.lower.cuda.library.views import plain, view_of
from graphgrad.runtime.cudnn.problem import TensorForm
from tests.running import function


def elements(memory, view):
    """What a view has of an array."""
    assert view.form.reach <= memory.size
    strides = [stride * memory.itemsize for stride in view.strides]
    return as_strided(memory.reshape(-1)[view.offset :], view.shape, strides)


def factors(choice, count):
    """Extents with a product, some of them 1."""
    extents = []
    while count > 1:
        extents.append(choice.choice([n for n in range(2, count + 1) if count % n == 0]))
        count //= extents[-1]
    for _ in range(choice.randrange(3)):
        extents.insert(choice.randrange(len(extents) + 1), 1)
    return extents


@pytest.mark.parametrize("seed", range(4))
def test_a_reshape_has_strides_where_numpy_finds_some(seed):
    choice = random.Random(seed)
    both = set()
    for _ in range(400):
        whole = [choice.randint(1, 5) for _ in range(choice.randint(1, 4))]
        memory = np.arange(np.prod(whole))
        view = plain(relax.Var("x", relax.TensorType(whole, "float32")))
        for axis, extent in enumerate(whole):
            begin = choice.randrange(extent)
            view = view.part(axis, begin, choice.randint(1, extent - begin))
        view = view.permuted(choice.sample(range(len(whole)), len(whole)))
        before = elements(memory, view)
        shape = factors(choice, before.size)
        reshaped = view.reshaped(shape)
        after = before.view()
        try:
            after.shape = shape
        except AttributeError:
            assert reshaped is None
        else:
            np.testing.assert_array_equal(elements(memory, reshaped), after)
        both.add(reshaped is None)
    assert both == {False, True}


def test_a_tensor_without_elements_has_no_reshape():
    empty = plain(relax.Var("x", relax.TensorType((2, 0), "float32")))
    assert empty.reshaped([0, 5]) is None


def test_reshapes_and_permutations_are_looked_behind_as_far_as_strides_reach():
    def build(b, x):
        rows = b.emit(relax.op.permute_dims(b.emit(relax.op.reshape(x, (2, 3, 4))), [1, 0, 2]))
        uneven = b.emit(relax.op.reshape(rows, (6, 4)))
        return b.emit(relax.op.permute_dims(uneven, [1, 0]))

    block = function(build, ((6, 4), "float32"))["main"].body.blocks[0]
    bound = {binding.var: binding.value for binding in block.bindings}
    _, rows, _, result = (binding.var for binding in block.bindings[:4])
    assert view_of(rows, bound).form == TensorForm((3, 2, 4), (4, 12, 1), "float32")
    found = view_of(result, bound)
    assert found.tensor.same_as(rows)
    assert found.form == TensorForm((4, 6), (1, 4), "float32")

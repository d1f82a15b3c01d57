"""Memory that functions of a model share: who gets which, and what goes."""

import gc
import weakref

import numpy as np
import pytest
import tvm

import graphgrad as gg
from graphgrad.models import mlp
from graphgrad.runtime.arena import Arena, Workspace


def workspace(size, count=2):
    half = size // count
    return Workspace(size, [(k * half, [half // 4], "float32") for k in range(count)])


def addresses(tensors):
    return [tensor.data_ptr() for tensor in tensors]


def test_workspaces_lie_in_the_same_memory_one_after_the_other():
    arena, large, small = Arena(tvm.cpu()), workspace(1024), workspace(512)
    with arena.lent(large) as tensors:
        first = addresses(tensors)
        assert first[1] - first[0] == 512 and first[0] % 64 == 0
    with arena.lent(small) as tensors:
        assert addresses(tensors) == [first[0], first[0] + 256]
    with arena.lent(large) as tensors:
        assert addresses(tensors) == first


def test_a_larger_one_takes_the_place_of_the_block():
    arena, small, large = Arena(tvm.cpu()), workspace(512), workspace(1 << 20)
    with arena.lent(small):
        pass
    block = arena._block
    with arena.lent(large) as tensors:
        assert not block.same_as(arena._block)
        tensors[1].copyfrom(np.ones(1 << 17, np.float32))  # as long as it should be
        begin = tensors[0].data_ptr()
    with arena.lent(small) as tensors:
        assert addresses(tensors)[0] == begin


def test_a_call_inside_of_a_call_has_memory_of_its_own():
    arena, outer, inner = Arena(tvm.cpu()), workspace(512), workspace(512)
    with arena.lent(outer) as tensors, arena.lent(inner) as others:
        assert not set(addresses(tensors)) & set(addresses(others))
    with pytest.raises(KeyError), arena.lent(outer):
        raise KeyError
    with arena.lent(inner) as tensors:
        assert tensors[0].data_ptr() == arena._block.data_ptr()


def test_tensors_go_with_their_workspace():
    arena, one = Arena(tvm.cpu()), workspace(512)
    with arena.lent(one):
        pass
    assert len(arena._placed) == 1
    del one
    gc.collect()
    assert len(arena._placed) == 0


def batch(size):
    rng = np.random.default_rng(size)
    return rng.standard_normal((size, 64), dtype=np.float32), rng.integers(0, 10, size)


def test_steps_of_several_shapes_and_evaluations_share():
    step = gg.train_step(gg.from_onnx(mlp()))
    step(*batch(8))
    block, size = step._arena._block, step._arena._bytes
    step(*batch(3))
    step.evaluate(batch(8)[0])
    assert block.same_as(step._arena._block) and len(step._arena._placed) == 3
    step(*batch(16))
    assert step._arena._bytes > size


def test_a_step_keeps_no_values_of_its_model():
    model = gg.from_onnx(mlp((8, 6, 3)))
    arrays = [weakref.ref(array) for array in model.params.values()]
    step = gg.train_step(model)
    x, y = np.ones((4, 8), np.float32), np.arange(4) % 3
    float(step(x, y))
    del model
    gc.collect()
    assert [array() for array in arrays] == [None] * len(arrays)
    assert np.isfinite(float(step(x, y))) and step.evaluate(x)
    with step.watched(Watch()):
        assert np.isfinite(float(step(x, y)))


class Watch:
    def lowering(self, name, budget):
        return tvm.transform.PassContext.current()

    def loaded(self, machine, device):
        pass

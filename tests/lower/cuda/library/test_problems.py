"""Calls as problems: extents in the library's order, strides as the axes are in memory."""

import pytest
from tvm import relax

from graphgrad.lower.cuda.library.problems import problem_of, tensors_of
from graphgrad.lower.cuda.library.views import plain
from graphgrad.runtime.cudnn.problem import Problem, TensorForm, strides_of
from tests.running import function

nn = relax.op.nn


def call_of(build, *types):
    """Return the only call of a function of tensors."""
    body = function(lambda b, *x: b.emit(build(*x)), *types)["main"].body
    return body.blocks[0].bindings[0].value


def problem(build, *types, tf32=False):
    call = call_of(build, *types)
    return problem_of(call, [plain(tensor) for tensor in tensors_of(call)], tf32)


def test_a_convolution_in_the_order_of_the_library():
    found = problem(
        lambda x, w: nn.conv2d(
            x, w, strides=2, padding=(1, 2, 3, 0), data_layout="NHWC", kernel_layout="OHWI"
        ),
        ((2, 9, 7, 4), "float16"),
        ((8, 3, 3, 4), "float16"),
    )
    assert found.op == "conv_forward"
    assert found.inputs[0] == TensorForm((2, 4, 9, 7), (252, 1, 28, 4), "float16")
    assert found.weights == TensorForm((8, 4, 3, 3), (36, 1, 12, 4), "float16")
    assert found.result == found.output == TensorForm((2, 8, 6, 4), (192, 1, 32, 8), "float16")
    assert (found.padding_before, found.padding_after) == ((1, 2), (3, 0))
    assert found.operations == 2 * (2 * 8 * 6 * 4) * (4 * 3 * 3)
    assert Problem.from_json(found.to_json()) == found


def test_a_stack_times_a_matrix_is_one_product():
    found = problem(relax.op.matmul, ((2, 3, 5), "float32"), ((5, 4), "float32"), tf32=True)
    assert [form.shape for form in found.tensors] == [(1, 6, 5), (1, 5, 4), (1, 6, 4)]
    assert found.tf32


def test_a_stack_that_is_permuted_is_read_as_it_is():
    call = call_of(relax.op.matmul, ((2, 3, 4, 5), "float16"), ((2, 3, 5, 6), "float16"))
    x, w = tensors_of(call)
    # The matrices of the one are rows and columns exchanged in memory; batches stay even.
    stored = relax.Var("stored", relax.TensorType((2, 3, 5, 4), "float16"))
    found = problem_of(call, [plain(stored).permuted((0, 1, 3, 2)), plain(w)], False)
    assert found.inputs[0] == TensorForm((6, 4, 5), (20, 1, 4), "float16")
    # Heads between positions and features: the matrices are no stack of even steps.
    stored = relax.Var("stored", relax.TensorType((2, 4, 3, 5), "float16"))
    assert problem_of(call, [plain(stored).permuted((0, 2, 1, 3)), plain(w)], False) is None
    assert problem_of(call, [plain(x), plain(w)], False).inputs[0].shape == (6, 4, 5)


def test_one_matrix_is_multiplied_by_all_of_a_stack():
    found = problem(relax.op.matmul, ((1, 4, 5), "float16"), ((3, 5, 6), "float16"))
    assert [form.shape[0] for form in found.tensors] == [1, 3, 3]


@pytest.mark.parametrize(
    "shapes, dtype",
    [
        ([(4, 5), (5, 6)], "float64"),
        ([(2, 1, 4, 5), (1, 3, 5, 6)], "float32"),  # neither is one matrix for all of the other
        ([(0, 5), (5, 6)], "float32"),
        ([(5,), (5, 6)], "float32"),
    ],
    ids=["float64", "crossed", "empty", "vector"],
)
def test_what_is_left_to_kernels_of_ours(shapes, dtype):
    assert problem(relax.op.matmul, *((shape, dtype) for shape in shapes)) is None


def test_other_ops_have_no_tensors_for_a_library():
    assert not tensors_of(call_of(relax.op.add, ((2,), "float32"), ((2,), "float32")))


def test_strides():
    assert strides_of((2, 3, 4)) == (12, 4, 1)

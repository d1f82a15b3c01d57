"""Arguments that are tensors or not, fit or do not; who asks is tested with te_gradient, te_jvp."""

import pytest
from tvm import te

from graphgrad.errors import ArgumentError, NotDifferentiableError
from graphgrad.fallback.arguments import check_floats, tensors_like, tensors_of

X = te.placeholder((4,), "float32", name="x")
N = te.var("n")


@pytest.mark.parametrize("given", [X, [X], (X, X)], ids=["one", "list", "tuple"])
def test_tensors_come_as_a_list(given):
    found = tensors_of("input", given)
    assert isinstance(found, list)
    assert all(tensor.same_as(X) for tensor in found)
    assert len(found) == (1 if given is X else len(given))


@pytest.mark.parametrize("optional", [False, True])
def test_none_is_given_among_several_only(optional):
    if optional:
        assert tensors_of("head", [None, X], optional=True)[0] is None
    else:
        with pytest.raises(ArgumentError, match="a NoneType was given as head"):
            tensors_of("head", [None, X])
    with pytest.raises(ArgumentError, match="a NoneType was given as head"):
        tensors_of("head", None, optional)


@pytest.mark.parametrize(
    ("shape", "fits"),
    [((4,), True), ((N,), True), ((3,), False), ((4, 1), False), ((), False)],
    ids=str,
)
def test_shapes_fit_that_may_be_equal(shape, fits):
    other = te.placeholder(shape, "float32", name="other")
    if fits:
        assert tensors_like("head", other, "output", [X])[0].same_as(other)
    else:
        with pytest.raises(ArgumentError, match="it must be as the output x: float32 of shape"):
            tensors_like("head", other, "output", [X])


@pytest.mark.parametrize("dtype", ["int32", "bool", "uint8"])
def test_what_is_not_of_floats_is_named(dtype):
    check_floats("input", [X])
    other = te.placeholder((4,), dtype, name="other")
    with pytest.raises(NotDifferentiableError, match=f"the input other is {dtype}, not float"):
        check_floats("input", [X, other])

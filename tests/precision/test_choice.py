import pytest

import graphgrad as gg
from graphgrad.precision.choice import precision_of


def test_a_name_is_short_for_a_precision():
    assert precision_of("bfloat16") == gg.Precision("bfloat16")
    assert precision_of(gg.Precision("tf32")).dtype == "tf32"


@pytest.mark.parametrize("choice", ["float8", "", None, 16])
def test_what_is_no_precision(choice):
    with pytest.raises(gg.ArgumentError, match="'float32', 'tf32', 'bfloat16', 'float16'"):
        precision_of(choice)


@pytest.mark.parametrize(
    ("dtype", "nodes", "message"),
    [
        ("bfloat16", {"conv": "float16"}, "of the node 'conv': 'float16'; give 'float32' or"),
        ("float32", {"conv": "float32"}, "nodes has no effect with 'float32'"),
        ("bfloat16", ["conv"], "is no mapping"),
    ],
)
def test_exceptions_that_cannot_be(dtype, nodes, message):
    with pytest.raises(gg.ArgumentError, match=message):
        gg.Precision(dtype, nodes)


def test_an_unknown_node_is_named_with_those_that_are_near():
    precision = gg.Precision("bfloat16", {"conv1": "float32"})
    with pytest.raises(gg.ArgumentError, match=r"no node 'conv1'; there are \['conv_1'\]"):
        precision.check_nodes(["conv_1", "relu"])
    precision.check_nodes(["conv1"])

import pytest
from tvm.ir import SourceName, Span

from graphgrad.errors import ArgumentError
from graphgrad.ir.provenance import Provenance, gradient_span, read, span_of


@pytest.mark.parametrize(
    "node, op_type, origin",
    [
        ("Conv_0", "Conv", None),
        ('/layer.1/"odd" name', "Conv", "hand"),
        (None, None, "derived"),
        ("ümlaut", "Relu", "user"),
    ],
)
def test_round_trip(node, op_type, origin):
    assert read(span_of(node, op_type, origin)) == Provenance(node, op_type, origin)


def test_origin_is_added_and_replaced():
    primal = span_of("Conv_0", "Conv")
    assert read(gradient_span(primal, "hand")) == Provenance("Conv_0", "Conv", "hand")
    assert read(gradient_span(gradient_span(primal, "hand"), "user")).origin == "user"
    assert read(gradient_span(None, "derived")) == Provenance(origin="derived")
    by_rule = gradient_span(primal, "user", primal=True, rule="rules.py:3")
    assert read(by_rule) == Provenance("Conv_0", "Conv", "user", True, "rules.py:3")
    assert read(gradient_span(by_rule, "hand")) == Provenance("Conv_0", "Conv", "hand")


@pytest.mark.parametrize("span", [None, Span(SourceName("file.py"), 1, 1, 1, 1)])
def test_a_span_of_other_making_says_nothing(span):
    assert read(span) == Provenance()


def test_unknown_origin():
    with pytest.raises(ArgumentError, match=r"unknown gradient origin 'guessed'.*hand"):
        gradient_span(None, "guessed")

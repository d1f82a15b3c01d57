"""The forward pass of every imported operator is that of onnxruntime, on generated cases.

`python bench/campaigns/operators.py` judges as many as one likes, and gradients too; here is one of
each operator.
"""

from dataclasses import replace

import numpy as np
import pytest

from graphgrad.frontend import converters, stock_operators
from tests.frontend.operator_cases import (
    FAMILIES,
    NOT_DRAWN,
    case,
    cases,
    standard_operators,
    versions,
)
from tests.peers import peer

HANDLED_BY_THE_IMPORTER = {"If", "Identity", "Constant"}


@pytest.mark.parametrize("family", FAMILIES)
def test_results_are_those_of_onnxruntime(family):
    peer("onnxruntime")
    from tests.frontend.operator_cases.forward import WRONG, judge

    drawn = [chosen for key in FAMILIES[family] for chosen in cases(0, 1, *key, only=newest(*key))]
    pairs = zip(drawn, judge(drawn), strict=True)
    assert [(c.name, judgment.reason) for c, judgment in pairs if judgment.status == WRONG] == []


def newest(domain, operator):
    """Return the newest version of an operator: its first opset and its last."""
    since, until = list(versions(domain, operator).items())[-1]
    return {since: until}


def test_every_operator_has_cases_or_a_reason():
    drawn = {name for family in FAMILIES.values() for domain, name in family if not domain}
    named = {name for names in NOT_DRAWN.values() for name in names.split()}
    assert drawn | named == standard_operators()
    assert not drawn & named


def test_every_converter_has_cases():
    drawn = {key for family in FAMILIES.values() for key in family}
    missing = set(converters.node._CONVERTERS) - drawn
    stock = {
        (domain, name)
        for domain, names in stock_operators._CONTRIBUTED.items()
        for name in names
        if stock_operators.is_translated(domain, name)
    }
    assert missing | (stock - drawn) == set()


@pytest.mark.parametrize("key", [("", "Conv", 11, 21), ("", "Loop", 13, 15)], ids=str)
def test_a_seed_gives_the_same_case_again(key):
    first, again = (case(3, 1, *key) for _ in range(2))
    assert first.model.SerializeToString() == again.model.SerializeToString()
    assert all(np.array_equal(first.arrays[n], again.arrays[n]) for n in again.arrays)
    assert first.model.SerializeToString() != case(4, 1, *key).model.SerializeToString()


def test_a_wrong_result_is_seen(monkeypatch):
    peer("onnxruntime")
    from tests.frontend.operator_cases import forward

    (chosen,) = cases(0, 1, "", "Softplus", {1: 21})
    run = forward._run
    monkeypatch.setattr(
        forward, "_run", lambda m: {i: [a + 1 for a in r] for i, r in run(m).items()}
    )
    (judgment,) = forward.judge([chosen])
    assert judgment.status == forward.WRONG
    assert "expected" in judgment.reason


@pytest.mark.parametrize("value", [1e300, 1e-300])
def test_a_case_beyond_float32_is_not_judged_in_it(value):
    peer("onnxruntime")
    from tests.frontend.operator_cases import forward

    chosen = _of_arrays(("", "Softsign", 7, 21), np.array([value, -value, 0.5]))
    assert forward.expect(chosen).oracle == forward.REFERENCE
    assert forward.judge([chosen]) == [forward.Judgment(forward.AGREES, "", forward.REFERENCE)]


def test_what_onnxruntime_computes_in_float32_is_compared_in_it():
    peer("onnxruntime")
    from tests.frontend.operator_cases import forward

    chosen = _of_arrays(("", "Shrink", 9, 23), np.array([1 / 3, -2 / 3, 7 / 3]))
    assert forward.judge([chosen]) == [forward.Judgment(forward.AGREES, "", forward.ONNXRUNTIME)]


@pytest.mark.parametrize(
    "key, values",
    [
        (("", "Shrink", 9, 23), [np.nan, 2]),
        (("", "ThresholdedRelu", 10, 21), [np.nan, 2]),
        (("", "GlobalMaxPool", 7, 21), [[[np.nan, 2]]]),
        (("", "GlobalMaxPool", 7, 21), [[[-np.inf, -np.inf]]]),
        (("com.microsoft", "FastGelu", 14, 14), [-5.0978]),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_a_disagreement_that_is_explained(key, values):
    peer("onnxruntime")
    from tests.frontend.operator_cases import forward

    (judgment,) = forward.judge([_of_arrays(key, np.array(values, "float32"))])
    assert judgment.status == forward.EXCLUDED


@pytest.mark.parametrize(
    "key, values",
    [
        (("", "Sigmoid", 13, 28), [-8.0]),
        (("", "Hardmax", 13, 28), [[np.nan, 2], [1, 2]]),
        (("", "ArgMax", 13, 28), [[np.nan, 2], [1, 2]]),
        (("", "Softmax", 13, 28), [[np.inf, 2], [1, 2]]),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_the_standard_is_followed_where_onnxruntime_departs_from_it(key, values):
    peer("onnxruntime")
    from tests.frontend.operator_cases import forward

    chosen = _of_arrays(key, np.array(values, "float32"))
    assert forward.judge([chosen]) == [forward.Judgment(forward.AGREES, "", forward.REFERENCE)]


def _of_arrays(key, *arrays):
    """A case of an operator with the arrays given."""
    chosen = case(0, 0, *key)
    return replace(chosen, drawn=replace(chosen.drawn, inputs=list(arrays), extra={}))

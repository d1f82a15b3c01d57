"""A few cases of the campaign of single operators; and that what is wrong is seen."""

import numpy as np
import pytest
from campaign import AGREE, GOOD, Case, Disagreement, NoOracle, judged

from tests.frontend.operator_cases import case as operator_case
from tests.frontend.operator_cases.extremes import KINDS, with_extremes
from tests.peers import peer

CASES = 24


@pytest.fixture(scope="module")
def operators():
    """The campaign; it needs its peers."""
    peer("onnx_ad")
    peer("onnxruntime")
    return peer("operators")


def test_a_slice(operators, tmp_path):
    """Cases of all families, spread over the operators."""
    outcomes = []
    for index in range(3, 550, 550 // CASES):
        folder = tmp_path / str(index)
        folder.mkdir()
        outcomes.append(judged(operators.judge, Case("operators", 0, index, folder)))
    assert [outcome for outcome in outcomes if outcome[0] not in GOOD] == []
    by_whom = [" ".join(counts) for outcome, _, _, counts in outcomes if outcome == AGREE]
    assert sum("gradients" in text for text in by_whom) > CASES / 4


@pytest.mark.parametrize(
    ("key", "oracle"),
    [
        (("", "Tanh", 13, 13), "onnx-ad"),
        (("", "Loop", 13, 13), "differences of onnxruntime"),
        (("com.microsoft", "BiasGelu", 14, 14), "differences of graphgrad"),
        (("", "DequantizeLinear", 10, 10), "differences in float32"),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
@pytest.mark.parametrize("what", ["right", "values", "gradients"])
def test_what_is_wrong_is_seen(operators, tmp_path, monkeypatch, key, oracle, what):
    """By each of the oracles."""
    chosen = _with_gradients(operators, key)
    monkeypatch.setattr(operators, "operator_case", lambda case: chosen)
    if oracle == "differences in float32":
        monkeypatch.setattr(operators, "_promoted", _not_in_float64)
    right = operators.gg.value_and_grad

    def wrong(model, wrt):
        def call(inputs, cotangents):
            values, gradients = right(model, wrt)(inputs, cotangents)
            results = {"values": values, "gradients": gradients}
            results[what] = {k: (1.01 * v + 0.01).astype(v.dtype) for k, v in results[what].items()}
            return results["values"], results["gradients"]

        return call

    case = Case("operators", 0, 0, tmp_path)
    if what == "right":
        assert oracle in " ".join(operators.judge(case))
        return
    monkeypatch.setattr(operators.gg, "value_and_grad", wrong)
    with pytest.raises(Disagreement, match=what.removesuffix("s")):
        operators.judge(case)


def _not_in_float64(subject, chosen):
    raise NoOracle("it takes float32 alone")


def _with_gradients(operators, key):
    """The first case of an operator, in float32, whose gradients are asked for."""
    for index in range(20):
        chosen = operator_case(0, index, *key)
        if {str(a.dtype) for a in chosen.arrays.values()} <= {"float32", "int8", "uint8", "int32"}:
            expected = operators.expect(chosen)
            if expected.outputs and operators._Subject(chosen, expected.outputs).is_differentiated:
                return chosen
    raise AssertionError(f"{key} has no such case")


def test_each_version_of_each_operator_comes_once_in_a_round(operators, tmp_path):
    count = len(operators._versions())
    cases = [operators.operator_case(Case("operators", 5, i, tmp_path)) for i in range(count)]
    assert len({(case.operator, case.domain) for case in cases}) > 180
    changed = [
        index
        for index, case in enumerate(cases)
        for plain in [operator_case(5, 0, *operators._versions()[index])]
        if any(not np.array_equal(plain.arrays[n], a) for n, a in case.arrays.items())
    ]
    assert 0.05 < len(changed) / count < 0.25  # extremes, and NaN that equals nothing


def test_extremes():
    plain = operator_case(0, 0, "", "MatMul", 13, 13)
    x = plain.arrays["x0"]
    found = set()
    for seed in range(60):
        y = with_extremes(plain, np.random.default_rng(seed)).arrays["x0"]
        assert y.shape == x.shape and y.dtype == x.dtype
        changed = y[~(x == y)]
        found |= {float(value) for value in changed}
    assert any(np.isnan(value) for value in found)
    assert {np.inf, -np.inf, 0.0} <= found
    assert any(0 < abs(value) < 1e-38 for value in found) and len(KINDS) == 7

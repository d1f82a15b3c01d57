"""Tests of the ONNX standard are judged: by their outputs, their gradients, and the closed list."""

from dataclasses import replace

import node_case
import node_file
import numpy as np
import pytest
from onnx import numpy_helper


@pytest.mark.parametrize(
    ("name", "kind", "status"),
    [
        ("test_operator_mm", "pytorch-operator", "supported"),
        ("test_sequence_model3", "simple", "supported"),
        ("test_swiglu", "node", "supported"),
        ("test_identity_sequence", "node", "supported"),
        ("test_loop13_seq", "node", "refused"),
        ("test_optional_has_element_optional_input", "node", "refused"),
        ("test_range_float_type_positive_delta_expanded", "node", "refused"),
        ("test_bernoulli_expanded", "node", "refused"),
    ],
)
def test_verdict(name, kind, status):
    assert node_case.judge(name, kind).status == status


def test_older_files_are_converted():
    case = node_case.cases("pytorch-operator")["test_operator_mm"]
    assert [used.version for used in case.model.opset_import] == [7]


def test_a_wrong_output_is_seen(monkeypatch):
    name, kind = "test_operator_exp", "pytorch-operator"
    case = node_case.cases(kind)[name]
    given, (output,) = case.data_sets[0]
    changed = numpy_helper.from_array(numpy_helper.to_array(output) + np.float32(1))
    spoilt = replace(case, data_sets=[(given, [changed])])
    monkeypatch.setitem(node_case.cases(kind), name, spoilt)
    verdict = node_case.judge(name, kind)
    assert verdict.status == "wrong" and verdict.reason.startswith("forward: output 0")


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("test_lstm_defaults", "agree"),
        ("test_swiglu", "agree"),
        ("test_cumprod_1d", "agree"),
        ("test_training_dropout", "agree"),
        ("test_compress_bfloat16", "reference"),
        ("test_scan_sum", "unwritten"),
        ("test_and2d", "refused"),
    ],
)
def test_gradient_as_a_file(name, status):
    assert node_file.judge_file(name).status == status


def test_a_file_that_computes_something_else_is_seen(monkeypatch):
    run = node_file._run

    def spoilt(proto, feeds):
        found, runtime = run(proto, feeds)
        return {name: 1.001 * array for name, array in found.items()}, runtime

    monkeypatch.setattr(node_file, "_run", spoilt)
    verdict = node_file.judge_file("test_sigmoid")
    assert verdict.status == "wrong" and "onnxruntime" in verdict.reason

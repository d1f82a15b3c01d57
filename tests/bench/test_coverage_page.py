"""docs/coverage.md is what the registry and the records say, and the records can be made."""

import coverage_page
import pytest

from graphgrad.registry import all_rules


def test_page_is_up_to_date():
    written = coverage_page.PAGE.read_text("utf-8")
    assert written == coverage_page.page(coverage_page.read_records()), (
        "run python bench/coverage_page.py"
    )


def test_every_op_is_on_the_page():
    page = coverage_page.page({"versions": {}, "ops": {}, "onnx": None})
    for rule in all_rules():
        if rule.origin == "hand":
            assert f"`{rule.op}`" in page
    assert "| `relax.call_tir` | derived" in page
    assert "| `relax.vision.roi_align` | derived" in page


def test_records_of_other_samples_do_not_count():
    rule = next(rule for rule in all_rules() if rule.op == "relax.tanh")
    record = {"samples": len(rule.samples), "order1": 4, "order2": 3, "torch": 2, "float16": 1}
    records = {"versions": {}, "ops": {rule.op: record}, "onnx": None}
    assert f"| {len(rule.samples)} | 4 | 3 | 2 | 1 |" in coverage_page.page(records)
    record["samples"] += 1
    assert "| 4 | 3 | 2 | 1 |" not in coverage_page.page(records)


def test_float16_is_judged():
    rule = next(rule for rule in all_rules() if rule.op == "relax.tanh")
    assert coverage_page.isolated(coverage_page.half_samples, rule.op) == len(rule.samples)


def test_a_dead_process_is_no_result():
    assert coverage_page.isolated(lambda op: coverage_page.sys.exit(3), "relax.tanh") is None


@pytest.mark.parametrize("status", ["missing", "wrong"])
def test_node_tests(status):
    tests = [
        {"name": "test_relu", "operator": "Relu", "status": "supported", "reason": ""},
        {"name": "test_a|b", "operator": "Gru", "status": status, "reason": "no | rule"},
    ]
    onnx = coverage_page.node_counts({"counts": {"supported": 1, status: 1}, "tests": tests})
    page = coverage_page.page({"versions": {}, "ops": {}, "onnx": onnx})
    assert f"1 {status}" in page
    assert f"| {status} | `test_a|b` | no \\| rule |" in page


def test_sets_of_small_models():
    tests = [{"name": "test_b", "operator": "Det", "status": "missing", "reason": "no rule"}]
    found = coverage_page.node_counts({"counts": {"missing": 1}, "tests": tests})
    records = {"versions": {}, "ops": {}, "onnx": None, "onnx_sets": {"simple": found}}
    page = coverage_page.page(records)
    assert "| simple | 0 | 0 | 1 | 0 |" in page
    assert "| simple | missing | `test_b` | no rule |" in page

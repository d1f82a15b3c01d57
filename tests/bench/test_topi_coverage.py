"""What docs/coverage.md says of topi is what the derivation gives today."""

import coverage_page
import topi_coverage

from tests.fallback.topi_cases import CASES, REASONS


def test_forms_are_as_recorded():
    recorded = coverage_page.read_records()["topi"]
    assert recorded == topi_coverage.topi_records(), "run python bench/coverage_page.py --topi"


def test_every_function_is_on_the_page():
    page = coverage_page.PAGE.read_text("utf-8")
    for function in {case.function for case in CASES} | set(REASONS):
        assert f"| `{function}` |" in page

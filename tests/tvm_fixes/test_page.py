from pathlib import Path

from graphgrad.tvm_fixes.page import page

PAGE = Path(__file__).parents[2] / "docs" / "tvm-defects.md"


def test_page_is_up_to_date():
    assert PAGE.read_text() == page(), (
        "write it anew: python -m graphgrad.tvm_fixes > docs/tvm-defects.md"
    )

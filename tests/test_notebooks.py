"""The notebooks run, and print what they have kept, but for digits."""

import re

import pytest

from tests.map import ROOT
from tests.notebooks import code_cells, printed, read, run
from tests.peers import peer

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
NEEDS = {"fine_tune": ["torch", "onnxscript", "onnxruntime"]}


def without_digits(text):
    """Return text with a sign for each number, in lines without the spaces that depend on them."""
    return re.sub(r"\s+", " ", re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "#", text))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path):
    for name in NEEDS.get(path.stem, []):
        peer(name)
    notebook = read(path)
    for cell, text in zip(code_cells(notebook), run(notebook), strict=True):
        assert without_digits(text) == without_digits(printed(cell))


def test_notebooks_are_executed():
    assert len(NOTEBOOKS) == 2
    for path in NOTEBOOKS:
        counts = [cell["execution_count"] for cell in code_cells(read(path))]
        assert counts == list(range(1, len(counts) + 1))

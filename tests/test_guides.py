"""The examples of pages run as they stand."""

import re
from pathlib import Path

import pytest

from graphgrad.fallback import intrinsics
from graphgrad.registry import rule
from tests.peers import peer

DOCS = Path(__file__).parent.parent / "docs"

GUIDES = {
    "custom-gradients.md": (6, None),
    "forward-mode.md": (1, None),
    "from-onnxruntime-training.md": (1, "onnxruntime"),
    "gradients-as-onnx.md": (1, "onnxruntime"),
    "jax.md": (1, "jax_tvm_ffi"),
    "loops.md": (2, None),
    "pytorch.md": (4, "torch"),
    "steps-as-onnx.md": (1, "onnxruntime"),
    "te-autodiff.md": (7, None),
}
"""How many examples a page has at least, and the peer that they need."""


def examples(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize(
    "page, number", [(page, number) for page in GUIDES for number in range(len(examples(page)))]
)
def test_example_runs(page, number, tmp_path, monkeypatch):
    _, needed = GUIDES[page]
    if needed is not None:
        peer(needed)
    # What an example registers, or writes, is gone after it.
    monkeypatch.setattr(intrinsics, "_OF_USERS", {})
    for tables in (rule._RULES, rule._FUNCTION_RULES):
        monkeypatch.setitem(tables, "user", {})
    monkeypatch.chdir(tmp_path)
    exec(compile(examples(page)[number], page, "exec"), {"__name__": "example"})


@pytest.mark.parametrize("page", GUIDES)
def test_there_are_examples(page):
    assert len(examples(page)) >= GUIDES[page][0]

"""What CONTRIBUTING has its reader try does what the page says."""

import re
import sys
from types import ModuleType

import pytest

from graphgrad.ir.passes import PassOrderError, Pipeline
from graphgrad.lower.cpu.schedule import schedule_loops
from graphgrad.lower.cpu.tuning import processor_of
from graphgrad.lower.kernels.zero_based_loops import start_loops_at_zero
from graphgrad.lower.pipeline import PASSES, Lowering
from graphgrad.lower.target import target
from tests.map import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def examples(title):
    """Return the examples in Python of a section."""
    (section,) = re.findall(rf"^## {title}$(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def test_your_first_rule(python):
    coverage, wrong = examples("Your first rule")
    assert "hand" in python.run(coverage).stdout
    rules = (ROOT / "graphgrad" / "registry" / "trigonometric.py").read_text("utf-8")
    assert wrong not in rules and wrong.replace("1.0 + y", "1.0 - y") in rules


def test_your_first_pass(monkeypatch):
    text, test = examples("Your first pass")
    module = ModuleType("graphgrad.lower.kernels.doubling")
    module.__package__ = "graphgrad.lower.kernels"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(text, vars(module))
    namespace = {}
    exec(test, namespace)
    namespace["test_doublings_are_additions"]()

    late, right = list(PASSES), list(PASSES)
    late.insert(late.index(start_loops_at_zero) + 1, module.add_twice)
    right.insert(right.index(schedule_loops), module.add_twice)
    with pytest.raises(PassOrderError, match=r"add_twice .* schedule_loops"):
        Pipeline(late, "llvm", Lowering)
    Pipeline(right, "llvm", Lowering)


def test_your_first_processor(capsys):
    if processor_of(target("llvm")).vector_bytes < 32:
        pytest.skip("this processor has no vectors of 256 bits")
    (example,) = examples("Your first processor")
    exec(example, {"__name__": "example"})
    first, second = capsys.readouterr().out.splitlines()
    assert first.split()[1][:6] == second.split()[1][:6]

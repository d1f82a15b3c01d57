"""What documents and docstrings name is there: modules, names, files."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tvm

import graphgrad  # noqa: F401 (registers its ops)

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
SOURCES = sorted(ROOT.glob("graphgrad/**/*.py"))

ATTRIBUTES = {f"graphgrad.{name}" for name in ("donated", "donated_done", "gradients", "kind")}
"""Names of attributes, and of the entry points of plug-ins."""

HISTORY = ROOT / "CHANGELOG.md"
"""It names what was there at the time."""

TO_BE_WRITTEN = {
    "graphgrad.lower.kernels.doubling",
    "graphgrad/lower/kernels/doubling.py",
    "tests/lower/kernels/test_doubling.py",
}
"""What CONTRIBUTING has its reader write."""

_NAME = re.compile(r"(?<![\w./\"-])graphgrad(?:\.\w+)+")
_IMPORT = re.compile(r"^(?:from graphgrad[\w.]* import .*|import graphgrad.*)$", re.MULTILINE)
_FILE = re.compile(r"(?<![\w./-])(?:graphgrad|tests|bench|docs|models)(?:/\w+)+\.(?:py|md|json)\b")


def is_there(name):
    """Whether a dotted name is a module, something in one, or an op."""
    if name in ATTRIBUTES or name in {str(op) for op in tvm.ir.Op.list_op_names()}:
        return True
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(value, part):
                break
            value = getattr(value, part)
        else:
            return True
    return False


@pytest.mark.parametrize("page", [p for p in PAGES if p != HISTORY], ids=lambda page: page.name)
def test_pages_name_what_is_there(page):
    text = page.read_text(encoding="utf-8")
    names, files = (set(pattern.findall(text)) - TO_BE_WRITTEN for pattern in (_NAME, _FILE))
    assert [name for name in sorted(names) if not is_there(name)] == []
    assert [file for file in sorted(files) if not (ROOT / file).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_merge_is_left_undecided(page):
    assert not re.search(r"^(<{7}|>{7}) ", page.read_text(encoding="utf-8"), re.MULTILINE)


def test_docstrings_name_what_is_there():
    lines = [(file, line) for file in SOURCES for line in file.read_text("utf-8").splitlines()]
    named = {name: file for file, line in lines for name in _NAME.findall(line)}
    assert {name: file for name, file in named.items() if not is_there(name)} == {}


def test_documented_imports_work_outside_of_the_tree(tmp_path):
    texts = [page.read_text(encoding="utf-8") for page in PAGES if page != HISTORY]
    imports = {line for text in texts for line in _IMPORT.findall(text)}
    imports = sorted(line for line in imports if not TO_BE_WRITTEN & set(line.split()))
    assert len(imports) > 5
    program = [sys.executable, "-c", "\n".join([*imports, "print(graphgrad.__file__)"])]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

"""Whatever graphgrad uses of TVM's private parts is on the list, and nothing else."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import graphgrad
from graphgrad.tvm_fixes.private_hooks import HOOKS, PINS, users

PACKAGE = Path(graphgrad.__file__).parent
SOURCES = [path for path in PACKAGE.rglob("*.py") if PACKAGE / "tvm_fixes" not in path.parents]
HOOKS_MODULE = PACKAGE / "tvm_fixes" / "hooks.py"

BUILDER = re.compile(r"_(begin|end)_\w*block")
"""Private methods of what is called a builder under many names."""


def of_tvm(tree):
    """Return the names under which a module has parts of TVM."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(a.asname or a.name).partition(".")[0] for a in node.names if is_tvm(a.name)}
        elif isinstance(node, ast.ImportFrom) and not node.level and is_tvm(node.module):
            names |= {a.asname or a.name for a in node.names}
    return names


def is_tvm(module):
    return module.partition(".")[0] in ("tvm", "tvm_ffi")


@cache
def private_uses(path):
    """The nodes of a module that name something private of TVM."""
    tree = ast.parse(path.read_text())
    return list(private_nodes(tree, of_tvm(tree)))


def private_nodes(tree, known):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and is_tvm(node.module):
            if any(a.name.startswith("_") for a in node.names):
                yield node
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if (isinstance(root, ast.Name) and root.id in known) or BUILDER.fullmatch(node.attr):
                yield node


def is_private(name):
    return name.startswith("_") and name not in ("__version__", "__file__", "__subclasses__")


def test_every_private_use_is_listed():
    missing = []
    for path in [*SOURCES, HOOKS_MODULE]:
        source = path.read_text()
        for node in private_uses(path):
            text = ast.get_source_segment(source, node)
            if not any(re.search(hook.pattern, text) for hook in HOOKS):
                missing.append(f"{path}:{node.lineno}: {text}")
    assert not missing


MAY_USE = ("lower/codegen/", "runtime/", "ir/tensor.py")
"""Who else names private parts of TVM: what links executables, and what exports carry."""


def test_private_parts_are_used_in_one_place():
    users = {path.relative_to(PACKAGE).as_posix() for path in SOURCES if private_uses(path)}
    assert {user for user in users if not user.startswith(MAY_USE)} == set()


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.name)
def test_every_hook_is_used(hook):
    assert users(hook)


def test_pins_are_those_of_the_package():
    project = (PACKAGE.parent / "pyproject.toml").read_text()
    pinned = re.findall(r'^    "(apache-tvm[\w-]*==[^"]+)"', project, flags=re.MULTILINE)
    assert sorted(pinned) == sorted(pin for pin, _ in PINS)

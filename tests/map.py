"""The tests of a path: ``python -m tests.map graphgrad/ops/pool.py`` prints them, for pytest.

    python -m pytest $(python -m tests.map $(git diff --name-only --diff-filter=d HEAD))

``tests/`` mirrors ``graphgrad/``: ``graphgrad/a/b.py`` is tested by ``tests/a/test_b.py``, and a
folder by the folder. To these come the tests that import the module from elsewhere, directly or
through a helper of the tests, and those of its whole folder that `OF_FOLDER` names. A module with
none of its own is tested by those of the nearest folder.
"""

import ast
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"

OF_FOLDER = {
    "graphgrad/frontend/converters": ["frontend/converters/test_defaults.py"],
    "graphgrad/registry": [
        f"registry/test_{name}.py" for name in ("rules", "torch", "kinks", "singular")
    ],
    "graphgrad/ops": ["registry/test_rules.py", "layout/test_rules.py"],
    "graphgrad/layout": ["layout/test_rules.py", "layout/test_channels_last.py"],
    "graphgrad/memory": [
        f"lower/test_{name}.py"
        for name in ("aliasing_programs", "overlap_copies", "random_aliasing")
    ],
    "graphgrad/runtime": ["runtime/test_step.py", "train/test_export.py"],
    "graphgrad/fallback/scans": [
        "fallback/scans/test_checkpoints.py",
        "fallback/lowering/test_scans.py",
        "ops/test_scan.py",
        "ops/test_random_loops.py",
        "frontend/converters/test_random_recurrent.py",
    ],
}
"""Tests that go through all files of a folder, such as those of each rule on its samples."""


def find_tests(path: Path) -> list[Path]:
    """Return the test files of a source file or folder, or of a test file or helper."""
    path = path.resolve().relative_to(ROOT)
    if path.parts[0] == "tests":
        itself = [ROOT / path] if path.name.startswith("test_") else []
        return sorted({*itself, *_importing(_module(path))})
    if path.parts[0] not in ("graphgrad", "models"):
        return []
    of_folder = [TESTS / test for test in OF_FOLDER.get(path.parent.as_posix(), ())]
    own = {*_mirrored(path), *_importing(_module(path))}
    return sorted({*(own or _nearest(path)), *of_folder})


def _mirrored(path: Path) -> list[Path]:
    inside = TESTS.joinpath(*path.parts[1 if path.parts[0] == "graphgrad" else 0 :])
    if path.suffix != ".py":
        return sorted(inside.rglob("test_*.py"))
    stem = "" if path.stem == "__init__" else path.stem
    file = inside.with_name(f"test_{stem}.py")
    return [file] if file.is_file() else []


def _nearest(path: Path) -> list[Path]:
    """Return the test files of the nearest mirrored folder that has any, without its folders."""
    inside = TESTS.joinpath(*path.parts[1 if path.parts[0] == "graphgrad" else 0 : -1])
    return sorted(inside.glob("test_*.py")) or (_nearest(path.parent) if inside != TESTS else [])


def _importing(module: str) -> set[Path]:
    """Return the tests that import a module, or a helper of the tests that does."""
    found: set[Path] = set()
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for file, imported in _imports().items():
            if name not in imported:
                continue
            if file.name.startswith("test_"):
                found.add(file)
            else:
                waiting.append(_module(file.relative_to(ROOT)))
    return found


@cache
def _imports() -> dict[Path, set[str]]:
    """What each file below tests/ imports, by full names of modules."""
    return {file: _imported_by(file) for file in TESTS.rglob("*.py")}


def _imported_by(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def _module(path: Path) -> str:
    """Return the name by which tests import a file: that of models/ is graphgrad.models."""
    parts = list(path.with_suffix("").parts)
    if parts[0] == "models":
        parts.insert(0, "graphgrad")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("usage: python -m tests.map PATH [PATH ...]")
    chosen = {test for argument in sys.argv[1:] for test in find_tests(Path(argument))}
    if not chosen:  # an empty line would have pytest run everything
        sys.exit("no tests belong to these paths: name a file of graphgrad/, models/ or tests/")
    print("\n".join(str(test.relative_to(ROOT)) for test in sorted(chosen)))

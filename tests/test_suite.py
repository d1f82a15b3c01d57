"""The suite itself: which tests belong to a path, and which to one process."""

from pathlib import Path

import pytest

from tests.groups import LONG, group_of
from tests.map import ROOT, find_tests
from tests.smoke import SMOKE

PACKAGES = "graphgrad/**/__init__.py"


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("graphgrad/ops/pool.py", "tests/ops/test_pool.py"),
        ("graphgrad/registry/pool.py", "tests/registry/test_rules.py"),
        ("graphgrad/lower/codegen", "tests/lower/codegen/cache/test_store.py"),
        ("graphgrad/memory/alias.py", "tests/memory/test_alias.py"),
        ("graphgrad/ops/elementwise.py", "tests/layout/test_rules.py"),
        ("graphgrad/lower/cpu/rowwise/chain.py", "tests/lower/cpu/rowwise/test_emit.py"),
        ("graphgrad/memory/call_effects.py", "tests/lower/test_random_aliasing.py"),
        ("models/lenet.py", "tests/models/test_lenet.py"),
        ("tests/lower/programs.py", "tests/memory/test_donation.py"),
        ("tests/ops/test_pool.py", "tests/ops/test_pool.py"),
    ],
)
def test_tests_of_a_path(path, test):
    assert (ROOT / path).exists()
    assert ROOT / test in find_tests(ROOT / path)


def test_every_module_has_tests():
    modules = [*ROOT.glob("graphgrad/**/*.py"), *ROOT.glob("models/*.py")]
    assert [module for module in modules if not find_tests(module)] == []


def test_documents_have_no_tests_of_their_own():
    assert find_tests(ROOT / "README.md") == []
    assert find_tests(Path(ROOT / "docs")) == []


def test_the_samples_of_a_rule_are_compiled_in_one_process():
    ours = group_of("tests/registry/test_rules.py::test_rule[relax.nn.conv2d-(1,2),strides=[1]]")
    theirs = group_of("tests/registry/test_torch.py::test_gradient_equals_torch[relax.nn.conv2d-5]")
    assert ours == theirs == "rule relax.nn.conv2d"


def test_other_tests_are_grouped_by_file():
    assert group_of("tests/ops/test_pool.py::test_x[relax.add]") == "tests/ops/test_pool.py"


def test_long_files_are_there():
    assert [file for file in LONG if not (ROOT / file).is_file()] == []


def test_smoke_tests_are_there():
    files = {line.partition("::")[0] for line in SMOKE.split()}
    assert [file for file in files if not (ROOT / "tests" / file).is_file()] == []


def test_smoke_tests_touch_every_room():
    rooms = {path.parent.relative_to(ROOT / "graphgrad") for path in ROOT.glob(PACKAGES)}
    rooms -= {Path("tvm_fixes/defects")}  # programs of TVM alone
    touched = {parent for line in SMOKE.split() for parent in Path(line.partition("::")[0]).parents}
    assert {room.as_posix() for room in rooms - touched} == set()

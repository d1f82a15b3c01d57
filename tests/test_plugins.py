"""Plug-ins: distributions on the path, whose rules are loaded with the first transform."""

import importlib
import os
import subprocess
import sys

import pytest

import graphgrad as gg
from graphgrad import plugins
from graphgrad.fallback import intrinsics
from graphgrad.registry import find, rule, unregister

RULES = """
import graphgrad as gg

with open(__file__ + ".log", "a") as log:
    log.write("loaded\\n")


@gg.register_gradient("relax.tan")
def tan(inputs, outputs, cotangents, attrs):
    return [cotangents[0] * 2.0]


@gg.register_gradient("tests.of_a_plugin")
def packed(inputs, outputs, cotangents, attrs):
    return cotangents
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Put a distribution on the path whose entry point brings rules; forget it afterwards."""
    modules = []

    def install(source, module, value=None, name="tangents"):
        (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")
        metadata = tmp_path / f"{module}-1.5.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Name: {module}\nVersion: 1.5\n", encoding="utf-8")
        entry = f"[{plugins.GROUP}]\n{name} = {value or module}\n"
        (metadata / "entry_points.txt").write_text(entry, encoding="utf-8")
        importlib.invalidate_caches()
        modules.append(module)
        return tmp_path / f"{module}.py"

    monkeypatch.syspath_prepend(str(tmp_path))
    fresh = plugins.Plugins()
    monkeypatch.setattr(rule, "PLUGINS", fresh)
    monkeypatch.setattr(intrinsics, "PLUGINS", fresh)
    monkeypatch.setattr(intrinsics, "_OF_PLUGINS", {})
    for tables in (rule._RULES, rule._FUNCTION_RULES):
        monkeypatch.setitem(tables, "plug-in", {})
    yield install
    for module in modules:
        sys.modules.pop(module, None)


def test_rules_are_loaded_once_and_when_first_asked_for(installed):
    path = installed(RULES, "tangents_module")
    log = path.with_suffix(".py.log")
    assert not log.exists()
    assert find("relax.tan").location.startswith(str(path))
    assert rule.find_function("tests.of_a_plugin").origin == "user"
    assert log.read_text() == "loaded\n"


def test_a_function_is_called(installed):
    installed("def register():\n    import registers_tan\n", "tangents_function")
    installed(RULES, "registers_tan", "tangents_function:register")
    with pytest.raises(gg.RuleError):
        unregister("relax.tan")
    assert "registers_tan" in find("relax.tan").location


def test_the_users_own_rules_go_first(installed):
    installed(RULES, "tangents_module")

    @gg.register_gradient("relax.tan")
    def mine(inputs, outputs, cotangents, attrs):
        return cotangents

    assert find("relax.tan").function is mine
    unregister("relax.tan")
    assert "tangents_module" in find("relax.tan").location


def test_derivatives_of_scalar_functions(installed, monkeypatch):
    source = "import graphgrad as gg\n" + "".join(
        f"gg.register_intrinsic_gradient({name!r}, lambda x, y: 7.0)\n"
        for name in ("tirx.exp", "sinpi")
    )
    installed(source, "scalars")
    assert intrinsics.find("sinpi").partials(0, 0) == 7.0
    assert intrinsics.find("tirx.exp").partials(0, 0) == 7.0
    monkeypatch.setattr(intrinsics, "_OF_USERS", {})
    gg.register_intrinsic_gradient("sinpi", lambda x, y: 8.0)
    assert intrinsics.find("sinpi").partials(0, 0) == 8.0


def test_two_plug_ins_for_one_op(installed):
    installed(RULES, "first_of_two", name="a")
    installed(RULES, "second_of_two", name="b")
    with pytest.raises(gg.RuleError, match=r"'b' \(second_of_two\) of second_of_two 1.5.*first_of"):
        find("relax.exp")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("1 / 0", "ZeroDivisionError"),
        ("import graphgrad as gg\ngg.register_gradient('relax.none')(id)", "no Relax op named"),
    ],
    ids=["import", "error", "rule"],
)
def test_a_broken_one_is_named_with_its_distribution(installed, source, reason):
    path = installed(source, "broken_module")
    for _ in range(2):  # it stays broken: its rules would silently be missing
        with pytest.raises(
            gg.RuleError, match=r"'tangents'.* of broken_module 1\.5 cannot"
        ) as error:
            find("relax.exp")
        assert reason in str(error.value)
    path.write_text("", encoding="utf-8")
    importlib.invalidate_caches()
    assert find("relax.exp").origin == "hand"


def test_a_plug_in_may_differentiate_while_it_is_loaded(installed):
    source = "from graphgrad.registry import find\nassert find('relax.exp').origin == 'hand'"
    installed(source, "differentiates")
    assert find("relax.exp").origin == "hand"


PROGRAM = """
import sys
import graphgrad as gg
from tvm import relax

assert "tangents_module" not in sys.modules
x = relax.Var("x", relax.TensorType([3], "float32"))
builder = relax.BlockBuilder()
with builder.function("main", [x]):
    builder.emit_func_output(builder.emit(relax.op.tan(x)))
print(gg.coverage(builder.get()))
assert "tangents_module" in sys.modules
"""


def test_in_a_fresh_process(installed, tmp_path):
    installed(RULES, "tangents_module")
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )
    assert result.returncode == 0, result.stderr
    assert "user" in result.stdout

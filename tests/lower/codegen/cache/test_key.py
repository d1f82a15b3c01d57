"""What the key of a program tells apart, what it leaves alone, and what has no key."""

import numpy as np
import pytest
import tvm
from tvm import relax

import graphgrad as gg
from graphgrad.lower.codegen.cache import key as key_module
from graphgrad.lower.codegen.cache import lowerings
from graphgrad.lower.codegen.cache.key import program_key
from graphgrad.memory import effects
from tests.lower.programs import module, tensor_type

op = relax.op

TARGET = gg.target({"kind": "llvm", "num-cores": 2})


@pytest.fixture(autouse=True)
def settled_sources(monkeypatch):
    """Sources may be edited while tests run; these do not depend on them."""
    monkeypatch.setattr(key_module, "sources_changed", lambda: False)


def program(scale=2.0, shape=(2, 3)):
    return module(lambda b, x: op.multiply(x, relax.const(np.float32(scale))), tensor_type(*shape))


def key(mod=None, target=TARGET, **options):
    return program_key(mod or program(), target, options)


def test_equal_programs_have_one_key():
    assert key() == key(program())
    assert len(key()) == 64


@pytest.mark.parametrize(
    "other",
    [
        program(scale=np.nextafter(np.float32(2), np.float32(3))),
        program(scale=-2.0),
        program(shape=(3, 2)),
        program().with_attr("note", 1),
    ],
    ids=["last bit of a constant", "sign", "shape", "attribute"],
)
def test_other_programs_have_other_keys(other):
    assert key(other) != key()


def test_the_sign_of_zero_counts():
    assert key(program(0.0)) != key(program(-0.0))


def test_target_options_and_pass_context_count():
    found = [
        key(),
        key(target=gg.target({"kind": "llvm", "num-cores": 3})),
        key(target=gg.target({"kind": "llvm", "num-cores": 2, "opt-level": 0})),
        key(winograd=False),
        key(winograd=True),
    ]
    with tvm.transform.PassContext(opt_level=0):
        found.append(key())
    with tvm.transform.PassContext(disabled_pass=["relax.FuseOps"]):
        found.append(key())
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        found.append(key())
    assert None not in found
    assert len(set(found)) == len(found)


def test_declared_effects_count(monkeypatch):
    monkeypatch.setattr(effects, "_declared", {})
    before = key()
    gg.declare_effects("tests.reads_only")
    assert key() != before


def test_sources_and_versions_count(monkeypatch):
    before = key()
    monkeypatch.setattr(key_module, "sources_digest", lambda: "others")
    other_sources = key()
    monkeypatch.setattr(key_module, "tvm_identity", lambda: ["another"])
    assert len({before, other_sources, key()}) == 3


ELSEWHERE = """
from tests.lower.codegen.cache import test_key as here
here.key_module.sources_changed = lambda: False
here.key_module.sources_digest = lambda: "the same"
print(here.key(), here.key(here.program(3.0)))
"""


def test_another_process_finds_the_same_key(monkeypatch, python):
    monkeypatch.setattr(effects, "_declared", {})
    monkeypatch.setattr(key_module, "sources_digest", lambda: "the same")
    done = python.run(ELSEWHERE)
    assert done.stdout.split() == [key(), key(program(3.0))]


# --- without a key ---


def test_instruments_see_every_pass():
    @tvm.ir.instrument.pass_instrument
    class Passes:
        pass

    with tvm.transform.PassContext(instruments=[Passes()]):
        assert key() is None


def test_sources_that_have_changed(monkeypatch):
    monkeypatch.setattr(key_module, "sources_changed", lambda: True)
    assert key() is None


@pytest.mark.parametrize("unknown", ["sources_digest", "tvm_identity"])
def test_sources_and_builds_that_cannot_be_told(monkeypatch, unknown):
    monkeypatch.setattr(key_module, unknown, lambda: None)
    assert key() is None


def test_lowerings_that_have_changed(monkeypatch):
    monkeypatch.setattr(key_module, "changed_lowerings", lambda: True)
    assert key() is None


def test_ops_of_others(monkeypatch):
    monkeypatch.setattr(lowerings, "_first_ops", lowerings._first_ops - {"relax.multiply"})
    monkeypatch.setattr(key_module, "changed_lowerings", lambda: False)
    assert key() is None
    assert key(module(lambda b, x: op.add(x, x), tensor_type(2, 3))) is not None


def test_what_has_no_written_form():
    external = tvm.tirx.build(
        tvm.tirx.PrimFunc([], tvm.tirx.Evaluate(0)).with_attr("global_symbol", "f"), TARGET
    )
    assert key(program().with_attr("external_mods", [external])) is None

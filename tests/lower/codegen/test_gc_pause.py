"""Python's collector is off while something is lowered, and then as it was."""

import gc

import pytest
import tvm

import graphgrad as gg
from graphgrad.lower import pipeline
from graphgrad.lower.codegen.gc_pause import pause_gc


@pytest.fixture
def collector():
    """Leave the collector as it was."""
    was_enabled = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was_enabled else gc.disable)()


def test_nothing_is_collected_inside(collector):
    with pause_gc():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_last_one_that_ends_resumes(collector):
    first, second = pause_gc(), pause_gc()
    with first:
        with second:
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_resumes(collector):
    with pytest.raises(KeyError), pause_gc():
        raise KeyError
    assert gc.isenabled()


def test_who_has_disabled_it_finds_it_disabled(collector):
    gc.disable()
    with pause_gc():
        pass
    assert not gc.isenabled()


def test_programs_are_lowered_without(collector, monkeypatch):
    seen = []

    def watched(*arguments, **options):
        return lambda mod: seen.append(gc.isenabled())

    monkeypatch.setattr(pipeline, "_lowering", watched)
    pipeline.lower(tvm.IRModule({}), gg.target("llvm"))
    assert seen == [False] and gc.isenabled()

"""Errors keep their types, also where they pass through TVM."""

import importlib
import pkgutil
from collections import Counter

import pytest
import tvm

import graphgrad
from graphgrad.errors import GraphGradError
from graphgrad.required import LEAST
from tests.labels import label


def kinds(base=GraphGradError):
    return [base, *(kind for child in base.__subclasses__() for kind in kinds(child))]


def test_no_two_errors_share_a_name():
    """TVM knows an error by its name alone."""
    for module in pkgutil.walk_packages(graphgrad.__path__, "graphgrad."):
        if not module.name.endswith("__main__") and "tvm_fixes.defects." not in module.name:
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                assert error.name in LEAST, error  # of a bridge whose framework is not installed
    names = Counter(kind.__name__ for kind in set(kinds()))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("kind", kinds(), ids=label)
def test_errors_pass_through_a_pass_of_tvm(kind):
    @tvm.transform.module_pass(opt_level=0)
    def failing(mod, context):
        raise kind("said inside")

    with pytest.raises(kind, match="said inside"):
        failing(tvm.IRModule())

"""Attributes that a node leaves out: converters take for them what the standard says."""

import ast
from pathlib import Path

import onnx
import pytest

from graphgrad.frontend import converters

MODULES = sorted(Path(converters.__file__).parent.glob("*.py"))


def converters_of(functions):
    """Yield the operators and the function of each converter among the functions of a module."""
    for function in functions.values():
        for decorator in function.decorator_list:
            if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "converter":
                yield [argument.value for argument in decorator.args], function


def is_number_or_text(expression):
    """Whether an expression is made of constants alone."""
    kinds = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    return all(isinstance(node, kinds) for node in ast.walk(expression))


def defaults(function, functions, seen=()):
    """Yield names and defaults of the attributes that a function asks for, itself or by others."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            if getattr(node.func, "attr", "") == "attribute" and len(node.args) == 2:
                name, default = node.args
                if isinstance(name, ast.Constant) and is_number_or_text(default):
                    yield name.value, eval(ast.unparse(default))
            called = getattr(node.func, "id", None)
            if called in functions and called not in seen:
                yield from defaults(functions[called], functions, (*seen, called))


def expected_default(operator, name):
    """Return the default that the standard has for an attribute; None if it has none."""
    try:
        attribute = onnx.defs.get_schema(operator).attributes.get(name)
    except onnx.defs.SchemaError:
        return None  # not of the default domain
    if attribute is None or not attribute.default_value.type:
        return None
    value = onnx.helper.get_attribute_value(attribute.default_value)
    return value.decode() if isinstance(value, bytes) else value


def cases():
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
        for operators, function in converters_of(functions):
            for name, default in defaults(function, functions):
                for operator in operators:
                    expected = expected_default(operator, name)
                    if expected is not None:
                        yield operator, name, default, expected


CASES = list(dict.fromkeys(cases()))


def test_most_attributes_are_here():
    assert len(CASES) >= 60
    assert {"AveragePool", "Conv", "HardSigmoid", "LayerNormalization"} <= {
        operator for operator, *_ in CASES
    }


@pytest.mark.parametrize(("operator", "name", "default", "expected"), CASES, ids=str)
def test_a_default_is_that_of_the_standard(operator, name, default, expected):
    default = default.decode() if isinstance(default, bytes) else default
    # The standard keeps floats in single precision.
    assert default == (pytest.approx(expected, rel=1e-6) if type(expected) is float else expected)

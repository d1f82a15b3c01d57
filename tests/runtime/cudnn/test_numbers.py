"""The numbers of cuDNN's interface are those of its header, where that is installed."""

import re
from pathlib import Path

import pytest

from graphgrad.runtime.cudnn import backend
from graphgrad.runtime.cudnn.attention import _ADD, _MAXIMUM
from graphgrad.runtime.cudnn.backend import Attribute, Kind, Note, Type, library_path
from graphgrad.runtime.cudnn.nodes import _INDEX, COMPARISONS, POINTWISE
from tests.peers import required

_MODES = {
    "negative": "NEG", "multiply": "MUL", "divide": "DIV", "subtract": "SUB", "tanh": "TANH_FWD",
    "sigmoid": "SIGMOID_FWD", "select": "BINARY_SELECT", "equal": "CMP_EQ", "not_equal": "CMP_NEQ",
    "greater": "CMP_GT", "greater_equal": "CMP_GE", "less": "CMP_LT", "less_equal": "CMP_LE",
}  # fmt: skip
"""Names of cuDNN's that are not ours in capitals."""

_KINDS = {
    "CONVOLUTION_FORWARD": "OPERATION_CONVOLUTION_FORWARD",
    "CONVOLUTION_WEIGHT_GRADIENT": "OPERATION_CONVOLUTION_BACKWARD_FILTER",
    "CONVOLUTION_DATA_GRADIENT": "OPERATION_CONVOLUTION_BACKWARD_DATA",
    "DEVICE_PROPERTIES": "DEVICEPROP",
    "ENGINE_CONFIG": "ENGINECFG",
    "ENGINE_HEURISTIC": "ENGINEHEUR",
    "OPERATION_GRAPH": "OPERATIONGRAPH",
    **{f"{name}_OPERATION": f"OPERATION_{name}"
       for name in ("MATMUL", "POINTWISE", "REDUCTION", "RESHAPE")},
}  # fmt: skip

_ATTRIBUTES = {
    "CONVOLUTION_COMPUTE_TYPE": "CONVOLUTION_COMP_TYPE",
    "CONVOLUTION_MODE": "CONVOLUTION_CONV_MODE",
    "CONVOLUTION_STRIDES": "CONVOLUTION_FILTER_STRIDES",
    "HEURISTIC_MODE": "ENGINEHEUR_MODE",
    "HEURISTIC_GRAPH": "ENGINEHEUR_OPERATION_GRAPH",
    "HEURISTIC_RESULTS": "ENGINEHEUR_RESULTS",
    "HEURISTIC_DEVICE": "ENGINEHEUR_DEVICEPROP",
    "CONFIG_ENGINE": "ENGINECFG_ENGINE",
    "PLAN_CONFIG": "EXECUTION_PLAN_ENGINE_CONFIG",
    "PLAN_WORKSPACE": "EXECUTION_PLAN_WORKSPACE_SIZE",
    "PLAN_JSON": "EXECUTION_PLAN_JSON_REPRESENTATION",
    "PLAN_DEVICE": "EXECUTION_PLAN_DEVICEPROP",
    "FORWARD_ALPHA": "OPERATION_CONVOLUTION_FORWARD_ALPHA",
    "DATA_GRADIENT_ALPHA": "OPERATION_CONVOLUTION_BWD_DATA_ALPHA",
    "WEIGHT_GRADIENT_ALPHA": "OPERATION_CONVOLUTION_BWD_FILTER_ALPHA",
    "POINTWISE_COMPUTE_TYPE": "POINTWISE_MATH_PREC",
    "POINTWISE_DESCRIPTOR": "OPERATION_POINTWISE_PW_DESCRIPTOR",
    "GRAPH_OPERATIONS": "OPERATIONGRAPH_OPS",
    "TENSOR_ALIGNMENT": "TENSOR_BYTE_ALIGNMENT",
    "TENSOR_ID": "TENSOR_UNIQUE_ID",
    "PACK_IDS": "VARIANT_PACK_UNIQUE_IDS",
    "PACK_POINTERS": "VARIANT_PACK_DATA_POINTERS",
    "PACK_WORKSPACE": "VARIANT_PACK_WORKSPACE",
    "ENGINE_INDEX": "ENGINE_GLOBAL_INDEX",
    "ENGINE_NUMERICAL_NOTES": "ENGINE_NUMERICAL_NOTE",
    "MATMUL_COMPUTE_TYPE": "MATMUL_COMP_TYPE",
    "MATMUL_DESCRIPTOR": "OPERATION_MATMUL_DESC",
    "REDUCTION_COMPUTE_TYPE": "REDUCTION_COMP_TYPE",
    "REDUCTION_DESCRIPTOR": "OPERATION_REDUCTION_DESC",
    "DEVICE_HANDLE": "DEVICEPROP_HANDLE",
    "DEVICE_JSON": "DEVICEPROP_JSON_REPRESENTATION",
    **{f"{op}_{tensor}": f"OPERATION_{op}_{tensor}DESC"
       for op in ("MATMUL", "POINTWISE", "REDUCTION", "RESHAPE") for tensor in "ABCTXY"},
}  # fmt: skip

_TYPES = {
    "HEURISTIC_MODE": "HEUR_MODE",
    "DESCRIPTOR": "BACKEND_DESCRIPTOR",
    "REDUCTION_OPERATOR": "REDUCTION_OPERATOR_TYPE",
}

_NOTES = {
    "STRICT_NAN_PROPAGATION": "STRICT_NAN_PROP",
    **{f"WINOGRAD_TILE_{n}X{n}": f"WINOGRAD_TILE_{n}x{n}" for n in (4, 6, 13)},
}


@pytest.fixture(scope="module")
def numbers():
    path = library_path()
    required("cuDNN", path is not None)
    header = Path(path).parents[1] / "include" / "cudnn_graph_v9.h"
    required("the header of cuDNN", header.exists())
    found = re.findall(r"\bCUDNN_(\w+)(?:\s+CUDNN_\w+)?\s*=\s*(\d+)", header.read_text("utf-8"))
    return {name: int(number) for name, number in found}


def test_modes_of_elementwise_operations(numbers):
    for name, number in POINTWISE.items():
        assert numbers[f"POINTWISE_{_MODES.get(name, name.upper())}"] == number, name
    assert numbers["POINTWISE_GEN_INDEX"] == _INDEX and set(COMPARISONS) < set(POINTWISE)
    assert numbers["REDUCE_TENSOR_ADD"] == _ADD and numbers["REDUCE_TENSOR_MAX"] == _MAXIMUM


@pytest.mark.parametrize(
    "enum, before, after, names",
    [
        (Kind, "BACKEND_", "_DESCRIPTOR", _KINDS),
        (Attribute, "ATTR_", "", _ATTRIBUTES),
        (Type, "TYPE_", "", _TYPES),
        (Note, "NUMERICAL_NOTE_", "", _NOTES),
    ],
    ids=["kinds", "attributes", "types", "notes"],
)  # fmt: skip
def test_enumerations(numbers, enum, before, after, names):
    for name, member in enum.__members__.items():
        theirs = names.get(name, name)
        assert numbers[f"{before}{theirs}{after}"] == member, name


def test_dtypes(numbers):
    names = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "HALF", "int32": "INT32",
             "bfloat16": "BFLOAT16", "bool": "BOOLEAN"}  # fmt: skip
    for name, number in backend.DATA_TYPES.items():
        assert numbers[f"DATA_{names[name]}"] == number

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm.ir import GenericConst

from graphgrad.frontend.onnx_import import from_onnx
from tests.peers import peer

from .graphs import model_of, op_names, random, run_model, run_onnx

INT, FLOAT = TensorProto.INT64, TensorProto.FLOAT


def constants(arrays):
    return [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(array)))
        for name, array in arrays.items()
    ]


def constant_model(op_type, arrays, outputs=1, opset=18, **attributes):
    """Apply an operator to constants."""
    names = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(
        op_type, ["" if a is None else f"c{i}" for i, a in enumerate(arrays)], names, **attributes
    )
    given = {f"c{i}": array for i, array in enumerate(arrays) if array is not None}
    proto = model_of([*constants(given), node], {}, {}, opset=opset)
    proto.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    return onnx.shape_inference.infer_shapes(proto)


def constant_outputs(model):
    """Return the outputs of a model that computes nothing."""
    result = model.mod["main"].body.body
    values = [result] if isinstance(result, GenericConst) else result.fields
    return [value.value.numpy() for value in values]


WHOLE = np.array([[7, -7, 3], [0, 4, -2]])
J = np.array([2, 3, -2])
F = np.array([2.5, -1.5, 0.3], dtype="float32")
CASES = [
    ("Add", [WHOLE, J], {}),
    ("Sub", [WHOLE, J], {}),
    ("Mul", [WHOLE, J], {}),
    ("Div", [WHOLE, J], {}),
    ("Div", [F, F[::-1].copy()], {}),
    ("Mod", [WHOLE, J], {}),
    ("Pow", [WHOLE, np.array(2)], {}),
    ("Min", [WHOLE, J], {}),
    ("Max", [WHOLE, J, np.array(1)], {}),
    ("Sum", [F, F], {}),
    ("Neg", [WHOLE], {}),
    ("Abs", [WHOLE], {}),
    ("Floor", [F], {}),
    ("Ceil", [F], {}),
    ("Round", [F], {}),
    ("Sqrt", [np.abs(F)], {}),
    ("Reciprocal", [F], {}),
    ("Not", [WHOLE > 0], {}),
    ("And", [WHOLE > 0, J > 0], {}),
    ("Or", [WHOLE > 0, J > 0], {}),
    ("Xor", [WHOLE > 0, J > 0], {}),
    ("Equal", [WHOLE, J], {}),
    ("Less", [WHOLE, J], {}),
    ("LessOrEqual", [F, F[::-1].copy()], {}),
    ("Greater", [WHOLE, J], {}),
    ("GreaterOrEqual", [WHOLE, J], {}),
    ("Where", [WHOLE > 0, WHOLE, J], {}),
    ("Cast", [F], {"to": INT}),
    ("Cast", [WHOLE], {"to": FLOAT}),
    ("Cast", [WHOLE], {"to": TensorProto.BOOL}),
    ("Cast", [WHOLE], {"to": TensorProto.INT32}),
    ("CastLike", [WHOLE, F], {}),
    ("Shape", [WHOLE], {}),
    ("Shape", [WHOLE], {"start": -1}),
    ("Size", [WHOLE], {}),
    ("Concat", [J, J[:1]], {"axis": 0}),
    ("Gather", [WHOLE, np.array([0, -1])], {"axis": 1}),
    ("Gather", [J, np.array(-1)], {}),
    ("ScatterElements", [J, np.array([-1, 0]), J[:2]], {}),
    ("ScatterElements", [WHOLE, np.array([[0, 2], [1, 0]]), WHOLE[:, :2]], {"axis": 1}),
    ("Slice", [WHOLE, np.array([-1]), np.array([-99]), np.array([1]), np.array([-2])], {}),
    ("Slice", [J, np.array([1]), np.array([2**62])], {}),
    ("Split", [J], {"num_outputs": 2}),
    ("Split", [WHOLE, np.array([1, 2])], {"axis": 1}),
    ("Squeeze", [WHOLE[:1]], {}),
    ("Squeeze", [WHOLE[None], np.array([0])], {}),
    ("Unsqueeze", [J, np.array([0, -1])], {}),
    ("Reshape", [WHOLE, np.array([0, -1, 1])], {}),
    ("Flatten", [WHOLE[None]], {"axis": 2}),
    ("Transpose", [WHOLE], {}),
    ("Transpose", [WHOLE[None]], {"perm": [2, 0, 1]}),
    ("Expand", [J[:, None], np.array([2, 1, 2])], {}),
    ("Tile", [J, np.array([2])], {}),
    ("Range", [np.array(5), np.array(-4), np.array(-2)], {}),
    ("ConstantOfShape", [np.array([2, 1])], {}),
    ("ReduceProd", [WHOLE], {"keepdims": 0}),
    ("ReduceSum", [WHOLE, np.array([-1])], {}),
    ("ReduceSum", [WHOLE], {"noop_with_empty_axes": 1}),
    ("ReduceSum", [WHOLE, np.array([], dtype="int64")], {}),
    ("ReduceMax", [WHOLE, np.array([0])], {"keepdims": 0}),
    ("ReduceMin", [WHOLE], {}),
]


@pytest.mark.parametrize(
    "op_type, arrays, attributes", CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)]
)
def test_constants_are_computed_as_onnxruntime_does(op_type, arrays, attributes):
    runtime = peer("onnxruntime")
    proto = constant_model(op_type, arrays, 2 if op_type == "Split" else 1, **attributes)
    for ours, expected in zip(
        constant_outputs(from_onnx(proto)), run_onnx(runtime, proto, {}), strict=True
    ):
        assert ours.dtype == expected.dtype
        np.testing.assert_array_equal(ours, expected)


def test_a_broken_power_of_an_integer_loses_its_fraction():
    runtime = peer("onnxruntime")
    nodes = [
        *constants({"two": np.array([2]), "half": np.array([0.5], "float32"), "ten": np.array(10)}),
        helper.make_node("Pow", ["two", "half"], ["root"]),
        helper.make_node("Mul", ["root", "ten"], ["factor"]),
        helper.make_node("Cast", ["factor"], ["float_factor"], to=FLOAT),
        helper.make_node("Mul", ["x", "float_factor"], ["y"]),
    ]
    proto = model_of(nodes, {"x": [2]}, {"y": [2]}, opset=18)
    x = np.array([1.0, -2.0], dtype="float32")
    model = from_onnx(proto)
    ours = run_model(model, model.mod, x)
    np.testing.assert_array_equal(ours, run_onnx(runtime, proto, {"x": x})[0])


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceProd", "Squeeze", "Unsqueeze", "Split"])
def test_axes_are_attributes_in_early_versions(op_type):
    runtime = peer("onnxruntime")
    data = WHOLE[:, :1] if op_type == "Squeeze" else WHOLE
    attributes = {"split": [1, 2], "axis": 1} if op_type == "Split" else {"axes": [1]}
    count = 2 if op_type == "Split" else 1
    proto = constant_model(op_type, [data], count, opset=11, **attributes)
    for ours, expected in zip(
        constant_outputs(from_onnx(proto)), run_onnx(runtime, proto, {}), strict=True
    ):
        np.testing.assert_array_equal(ours, expected)


def step(op_type, inputs, output="target", **attributes):
    return helper.make_node(op_type, inputs.split(), output.split(), **attributes)


def scaled(factor, rounding):
    """As `interpolate` computes a size: rounded products in float32."""
    return [
        step("Cast", "s", "float", to=FLOAT),
        step("Mul", "float factor", "product"),
        step(rounding, "product", "whole"),
        step("Div", "whole factor", "back"),
        step("Cast", "back", to=INT),
    ], {"factor": np.float32(factor)}


# What computes ``target`` from ``s``, the shape (N, 6, M) of x; constants; the shape that it is.
CHAINS = {
    "product": (
        [
            step("Slice", "s zero two", "head"),
            step("ReduceProd", "head", "rows"),
            step("Concat", "rows rest", axis=0),
        ],
        {"zero": [0], "two": [2], "rest": [-1]},
        lambda n, m: (6 * n, m),
    ),
    "heads": (
        [
            step("Split", "s", "n c m", num_outputs=3),
            step("Div", "c two", "d"),
            step("Concat", "n two d m", axis=0),
        ],
        {"two": [2]},
        lambda n, m: (n, 2, 3, m),
    ),
    "scalars": (
        [
            step("Gather", "s last", "m"),
            step("Mul", "m six", "columns"),
            step("Unsqueeze", "columns zero", "row"),
            step("Concat", "rest row", axis=0),
        ],
        {"last": -1, "six": 6, "zero": [0], "rest": [-1]},
        lambda n, m: (n, 6 * m),
    ),
    "float factor": (*scaled(2.0, "Floor"), lambda n, m: (n, 6, m)),
    "expand pattern": (
        [
            step("Shape", "s", "rank"),
            step("ConstantOfShape", "rank", "ones", value=helper.make_tensor("v", INT, [1], [1])),
            step("Mul", "ones minus", "unset"),
            step("Equal", "s unset", "is_unset"),
            step("Where", "is_unset ones s"),
        ],
        {"minus": -1},
        lambda n, m: (n, 6, m),
    ),
    "indices by range": (
        [step("Range", "zero three one", "r"), step("Gather", "s r")],
        {"zero": 0, "three": 3, "one": 1},
        lambda n, m: (n, 6, m),
    ),
    "multiples": (
        [
            step("Mul", "s four", "a"),
            step("Div", "a two", "b"),
            step("Max", "b zero", "c"),
            step("Sub", "c s", "d"),
            step("Mod", "d large", "e"),
            step("Where", "same e d"),
        ],
        {"four": 4, "two": 2, "zero": 0, "large": [9, 7, 9], "same": [False, True, False]},
        lambda n, m: (n, 6, m),
    ),
    "size": (
        [step("Size", "x", "size"), step("Reshape", "size one")],
        {"one": [1]},
        lambda n, m: (6 * n * m,),
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains_of_symbolic_dimensions_leave_one_reshape(name):
    nodes, arrays, shape = CHAINS[name]
    ends = [helper.make_node("Shape", ["x"], ["s"])], [step("Reshape", "x target", "y")]
    proto = model_of(
        [*ends[0], *constants(arrays), *nodes, *ends[1]], {"x": ["N", 6, "M"]}, {}, opset=18
    )
    dims = [None] * len(shape(1, 1))
    proto.graph.output.append(helper.make_tensor_value_info("y", FLOAT, dims))
    model = from_onnx(proto)
    assert op_names(model.mod) in (["relax.reshape"], [])
    for n, m in ((2, 3), (5, 4)):
        x = random(n, 6, m)
        np.testing.assert_array_equal(run_model(model, model.mod, x), x.reshape(shape(n, m)))


# What computes y from x, of shape (N, 3), with a shape as an operand; what it is.
USES = {
    "a float": (
        [
            step("Shape", "x", "s"),
            step("Gather", "s zero", "n"),
            step("Cast", "n", "f", to=FLOAT),
            step("Div", "f four", "quarter"),
            step("Mul", "x quarter", "y"),
        ],
        {"zero": 0, "four": np.float32(4)},
        lambda x: x * (len(x) / 4),
    ),
    "what is not exact": (
        [
            step("Shape", "x", "s"),
            step("Cast", "s", "f", to=FLOAT),
            step("Mul", "f tenth", "g"),
            step("Sqrt", "g", "h"),
            step("Gather", "h zero", "r"),
            step("Mul", "x r", "y"),
        ],
        {"zero": 0, "tenth": np.float32(0.1)},
        lambda x: x * np.sqrt(np.float32(len(x)) * np.float32(0.1)),
    ),
    "a comparison that both ways may go": (
        [
            step("Shape", "x", "s"),
            step("Equal", "s three", "e"),
            step("Cast", "e", "f", to=FLOAT),
            step("ReduceSum", "f", "r", keepdims=0),
            step("Mul", "x r", "y"),
        ],
        {"three": 3},
        lambda x: x * sum(np.equal(x.shape, 3)),
    ),
    "positions": (
        [
            step("Shape", "x", "s"),
            step("Gather", "s zero", "n"),
            step("Range", "zero n one", "r"),
            step("Cast", "r", "f", to=FLOAT),
            step("Unsqueeze", "f axes", "column"),
            step("Mul", "x column", "y"),
        ],
        {"zero": 0, "one": 1, "axes": [1]},
        lambda x: x * np.arange(len(x), dtype="float32")[:, None],
    ),
    "positions from one in steps of two": (
        [
            step("Shape", "x", "s"),
            step("Gather", "s zero", "n"),
            step("Range", "one n two", "r"),
            step("ReduceSum", "r", "sum", keepdims=0),
            step("Cast", "sum", "f", to=FLOAT),
            step("Mul", "x f", "y"),
        ],
        {"zero": 0, "one": 1, "two": 2},
        lambda x: x * np.float32(np.arange(1, len(x), 2).sum()),
    ),
    "a fill": (
        [
            step("Shape", "x", "s"),
            step("ConstantOfShape", "s", "f", value=helper.make_tensor("v", FLOAT, [1], [2.0])),
            step("Add", "x f", "y"),
        ],
        {},
        lambda x: x + 2,
    ),
    "an expansion": (
        [
            step("Shape", "x", "s"),
            step("Expand", "row s", "e"),
            step("Add", "x e", "y"),
        ],
        {"row": np.arange(3, dtype="float32")},
        lambda x: x + np.arange(3, dtype="float32"),
    ),
}


@pytest.mark.parametrize("name", USES)
def test_shapes_as_operands(name):
    nodes, arrays, expected = USES[name]
    proto = model_of([*constants(arrays), *nodes], {"x": ["N", 3]}, {"y": ["N", 3]})
    model = from_onnx(proto)
    for rows in (2, 3, 5):
        x = random(rows, 3)
        np.testing.assert_allclose(run_model(model, model.mod, x), expected(x), rtol=1e-6)


def test_a_range_that_may_be_empty():
    nodes = [
        step("Shape", "x", "s"),
        step("Gather", "s zero", "n"),
        step("Range", "four n one", "y"),
    ]
    proto = model_of([*constants({"zero": 0, "four": 4, "one": 1}), *nodes], {"x": ["N"]}, {})
    proto.graph.output.append(helper.make_tensor_value_info("y", INT, [None]))
    model = from_onnx(proto)
    assert [run_model(model, model.mod, random(n)).tolist() for n in (2, 7)] == [[], [4, 5, 6]]


def test_a_shape_is_an_output():
    nodes = [step("Shape", "x", "y"), step("Mul", "y two", "z")]
    proto = model_of([*constants({"two": 2}), *nodes], {"x": ["N", 3]}, {})
    proto.graph.output.extend(helper.make_tensor_value_info(k, INT, [2]) for k in "yz")
    model = from_onnx(proto)
    y, z = run_model(model, model.mod, random(5, 3))
    assert (y.tolist(), z.tolist(), y.dtype) == ([5, 3], [10, 6], np.int64)

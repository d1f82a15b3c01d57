import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphgrad as gg
from graphgrad.frontend.converters import loops
from graphgrad.frontend.mode import specialize
from tests.differences import assert_gradients
from tests.frontend.converters.nodes import drawn, reference
from tests.running import run

DOUBLE, INT64, BOOL = TensorProto.DOUBLE, TensorProto.INT64, TensorProto.BOOL


def graph(nodes, inputs, outputs, constants=None):
    """Return a graph; inputs and outputs are (name, dtype, shape)."""
    values = [
        [helper.make_tensor_value_info(*value) for value in some] for some in (inputs, outputs)
    ]
    tensors = [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    return helper.make_graph(nodes, "graph", *values, tensors)


def model(node, inputs, outputs, constants=None, opset=21):
    proto = graph([node], inputs, outputs, constants)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(proto, opset_imports=opsets, ir_version=10)


def checked(proto, *arrays):
    """Check outputs by onnxruntime, gradients by differences; return the outputs."""
    module = specialize(gg.from_onnx(proto), None)
    ours = assert_gradients(module, *arrays)
    names = [value.name for value in proto.graph.input]
    for a, b in zip(ours, reference(proto, dict(zip(names, arrays, strict=True))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    return ours


def cell(scan_rank=1):
    """S′ = tanh(S · w + x), y = S′ · x, where w is of the graph around."""
    shape = [None] * scan_rank
    return graph(
        [
            helper.make_node("Mul", ["s", "w"], ["sw"]),
            helper.make_node("Add", ["sw", "x"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["s_out"]),
            helper.make_node("Mul", ["s_out", "x"], ["y"]),
        ],
        [("s", DOUBLE, shape), ("x", DOUBLE, shape)],
        [("s_out", DOUBLE, shape), ("y", DOUBLE, shape)],
    )


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"scan_input_directions": [1], "scan_output_directions": [1]},
        {"scan_input_axes": [-1], "scan_output_axes": [-1]},
    ],
    ids=["plain", "backwards", "axes"],
)
def test_scan(attributes):
    node = helper.make_node(
        "Scan", ["s0", "xs"], ["last", "ys"], body=cell(), num_scan_inputs=1, **attributes
    )
    inputs = [("s0", DOUBLE, [3]), ("xs", DOUBLE, [3, 3]), ("w", DOUBLE, [3])]
    outputs = [("last", DOUBLE, [3]), ("ys", DOUBLE, [3, 3])]
    checked(model(node, inputs, outputs), *(drawn(v[2], dtype="float64") for v in inputs))


def test_scan_of_version_8_has_a_batch():
    node = helper.make_node(
        "Scan", ["", "s0", "xs"], ["last", "ys"], body=cell(), num_scan_inputs=1, directions=[1]
    )
    inputs = [("s0", DOUBLE, [2, 3]), ("xs", DOUBLE, [2, 4, 3]), ("w", DOUBLE, [3])]
    outputs = [("last", DOUBLE, [2, 3]), ("ys", DOUBLE, [2, 4, 3])]
    arrays = [drawn(value[2], dtype="float64", seed=i) for i, value in enumerate(inputs)]
    proto = model(node, inputs, outputs, opset=8)
    state, rows, w = arrays
    ys = []
    for row in rows[:, ::-1].swapaxes(0, 1):
        state = np.tanh(state * w + row)
        ys.append(state * row)
    last, stacked = assert_gradients(specialize(gg.from_onnx(proto), None), *arrays)
    np.testing.assert_allclose(last, state, rtol=1e-12)
    np.testing.assert_allclose(stacked, np.stack(ys, 1), rtol=1e-12)


def loop_body(goes_on):
    """S′ = sin(S · w) + i, y = S′; `goes_on` says how the condition is computed."""
    return graph(
        [
            helper.make_node("Mul", ["s", "w"], ["sw"]),
            helper.make_node("Sin", ["sw"], ["sine"]),
            helper.make_node("Cast", ["i"], ["number"], to=DOUBLE),
            helper.make_node("Add", ["sine", "number"], ["s_out"]),
            helper.make_node("Identity", ["s_out"], ["y"]),
            goes_on,
        ],
        [("i", INT64, []), ("cond", BOOL, []), ("s", DOUBLE, [3])],
        [("cond_out", BOOL, []), ("s_out", DOUBLE, [3]), ("y", DOUBLE, [3])],
    )


GOES_ON = helper.make_node("Identity", ["cond"], ["cond_out"])


def loop_model(count, condition="", goes_on=GOES_ON, constants=None):
    node = helper.make_node("Loop", ["m", condition, "s0"], ["s", "ys"], body=loop_body(goes_on))
    inputs = [("s0", DOUBLE, [3]), ("w", DOUBLE, [3])]
    outputs = [("s", DOUBLE, [3]), ("ys", DOUBLE, [None, 3])]
    given = {"m": np.int64(count), **(constants or {})}
    return model(node, inputs, outputs, {n: np.asarray(a) for n, a in given.items()})


@pytest.mark.parametrize("count", [0, 1, 3])
def test_loop(count):
    checked(loop_model(count), *(drawn((3,), dtype="float64", seed=i) for i in range(2)))


def test_a_loop_that_does_not_start():
    proto = loop_model(3, "start", constants={"start": np.array(False)})
    s0, w = (drawn((3,), dtype="float64", seed=i) for i in range(2))
    last, ys = checked(proto, s0, w)
    np.testing.assert_array_equal(last, s0)
    assert ys.shape == (0, 3)


def test_a_condition_that_is_computed_from_what_is_known():
    twice = helper.make_node("Or", ["cond", "start"], ["cond_out"])
    proto = loop_model(2, "start", twice, {"start": np.array(True)})
    checked(proto, *(drawn((3,), dtype="float64", seed=i) for i in range(2)))


def test_a_trip_count_that_depends_on_data_is_refused():
    less = helper.make_node("IsNaN", ["s_scalar"], ["cond_out"])
    body = loop_body(less)
    total = helper.make_node("ReduceSum", ["s_out"], ["s_scalar"], keepdims=0)
    body.node.insert(len(body.node) - 1, total)
    proto = loop_model(3)
    proto.graph.node[0].attribute[0].g.CopyFrom(body)
    with pytest.raises(gg.ModelError, match="whether to go on"):
        gg.from_onnx(proto)
    given = loop_model(3)
    given.graph.initializer.pop()
    given.graph.input.append(helper.make_tensor_value_info("m", INT64, []))
    with pytest.raises(gg.ModelError, match="make it a constant"):
        gg.from_onnx(given)


def test_an_endless_loop_is_refused():
    proto = loop_model(3)
    proto.graph.node[0].input[0] = ""
    with pytest.raises(gg.ModelError, match="no trip count"):
        gg.from_onnx(proto)


def growing_loop(count=3, opset=17):
    """S′ = S and its last element squared, y = x[i : i + 1]: both need the number of the step."""
    body = graph(
        [
            helper.make_node("Add", ["i", "one"], ["next"]),
            helper.make_node("Unsqueeze", ["i", "zero"], ["begin"]),
            helper.make_node("Unsqueeze", ["next", "zero"], ["end"]),
            helper.make_node("Slice", ["x", "begin", "end"], ["y"]),
            helper.make_node("Mul", ["s", "y"], ["product"]),
            helper.make_node("Slice", ["product", "minus_one", "many"], ["last"]),
            helper.make_node("Concat", ["s", "last"], ["s_out"], axis=0),
            helper.make_node("Less", ["next", "stop"], ["cond_out"]),
        ],
        [("i", INT64, []), ("cond", BOOL, []), ("s", DOUBLE, [None])],
        [("cond_out", BOOL, []), ("s_out", DOUBLE, [None]), ("y", DOUBLE, [1])],
    )
    node = helper.make_node("Loop", ["m", "", "s0"], ["s", "ys"], body=body)
    constants = {
        "m": np.int64(2**40),
        "one": np.int64(1),
        "zero": np.array([0]),
        "minus_one": np.array([-1]),
        "many": np.array([9]),
        "stop": np.int64(count),
    }
    inputs = [("s0", DOUBLE, [2]), ("x", DOUBLE, [4])]
    outputs = [("s", DOUBLE, [None]), ("ys", DOUBLE, [None, 1])]
    return model(node, inputs, outputs, {n: np.asarray(a) for n, a in constants.items()}, opset)


def test_steps_that_differ_are_written_out_until_the_loop_ends():
    s0, x = drawn((2,), dtype="float64"), drawn((4,), seed=1, dtype="float64")
    last, ys = checked(growing_loop(), s0, x)
    assert (last.shape, ys.shape) == ((5,), (3, 1))


def test_too_many_steps_that_differ_are_refused(monkeypatch):
    monkeypatch.setattr(loops, "_MAX_UNROLLED_STEPS", 2)
    with pytest.raises(gg.ModelError, match=r"more than 2 steps.*Slice.*make it a constant"):
        gg.from_onnx(growing_loop())


def test_a_loop_of_no_steps_that_are_written_out():
    """It returns its start, and no rows of what a step would add."""
    proto = growing_loop()
    for tensor in proto.graph.initializer:
        if tensor.name == "m":
            tensor.CopyFrom(numpy_helper.from_array(np.array(0), "m"))
    s0 = drawn((2,), dtype="float64")
    module = specialize(gg.from_onnx(proto), None)
    last, ys = run(module, "main", s0, drawn((4,), dtype="float64"))
    np.testing.assert_array_equal(last, s0)
    assert ys.shape == (0, 1)

"""Tensors that are malformed, and external data that are not where they may be."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphgrad as gg
from graphgrad.errors import ModelError
from graphgrad.frontend.onnx_load import load

W = np.arange(12, dtype=np.float32).reshape(3, 4)
CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.onnx"))


def model(weight=None):
    """A model x · w."""
    weight = numpy_helper.from_array(W, "w") if weight is None else weight
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def tensor(**fields):
    return TensorProto(**{"name": "w", "data_type": 1, "dims": [3, 4], **fields})


@pytest.mark.parametrize(
    "weight, message",
    [
        (tensor(raw_data=W.tobytes()[:-1]), "needs 48 bytes, but has 47"),
        (tensor(raw_data=W.tobytes() + b"\0"), "needs 48 bytes, but has 49"),
        (tensor(float_data=range(11)), "needs 12 numbers in float_data, but has 11"),
        (tensor(), "needs 12 numbers in float_data, but has 0"),
        (tensor(dims=[3, -4], float_data=range(12)), "which are no size"),
        (tensor(dims=[0, 2**62, 2**62]), "which are no size"),
        (tensor(dims=[2**40, 2**40]), "which are no size"),
        (tensor(dims=[1] * 70, float_data=[1]), "has 70 axes"),
        (tensor(data_type=1000), "data type 1000, which ONNX does not know"),
        (tensor(data_type=-1), "data type -1, which ONNX does not know"),
        (tensor(data_type=0), "data type 0, which ONNX does not know"),
        (tensor(data_type=TensorProto.INT4, raw_data=b"1" * 7), "needs 6 bytes, but has 7"),
        (tensor(data_type=TensorProto.STRING, string_data=[b"a"]), "has 1 strings"),
        (tensor(data_type=8, dims=[1], string_data=[b"\xff"]), "holds what is no text"),
        (tensor(segment=TensorProto.Segment(begin=0, end=3)), "is a segment"),
    ],
)
def test_malformed_tensors(weight, message):
    with pytest.raises(ModelError, match=f"'w'.*{message}"):
        load(model(weight))


def test_tensors_in_inner_graphs_and_functions_are_looked_at():
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[2] x, bool c) => (float[2] y) {
          a = If (c) <then_branch = t () => (float[2] p) { p = own.f (x) },
                      else_branch = e () => (float[2] q)
                        { k = Constant <value = float[2] {1, 2}> ()  q = Add (x, k) }>
          y = Neg (a)
        }
        <domain: "own", opset_import: ["" : 17]>
        f (x) => (z) { k = Constant <value = float[2] {3, 4}> ()  z = Add (x, k) }"""
    for inside in ("branch", "function"):
        proto = onnx.parser.parse_model(text)
        branches = {a.name: a.g for a in proto.graph.node[0].attribute}
        nodes = branches["else_branch"].node if inside == "branch" else proto.functions[0].node
        nodes[0].attribute[0].t.dims[0] = 3
        with pytest.raises(ModelError, match="needs 3 numbers in float_data, but has 2"):
            load(proto)


def test_a_sparse_tensor_that_fills_the_memory():
    proto = model()
    del proto.graph.initializer[:]
    values, indices = numpy_helper.from_array(W[0, :1], "w"), numpy_helper.from_array(np.int64([5]))
    sparse = helper.make_sparse_tensor(values, indices, [1 << 20, 1 << 20])
    proto.graph.sparse_initializer.append(sparse)
    with pytest.raises(ModelError, match=r"sparse tensor 'w'.*store it dense"):
        load(proto)


@pytest.fixture
def folder(tmp_path):
    """A folder with the data of w in it, a link to them, a folder, a pipe, and more outside."""
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "w.bin").write_bytes(bytes(8) + W.tobytes())
    (folder / "inner").symlink_to("w.bin")
    (tmp_path / "outside").write_bytes(bytes(8) + W.tobytes())
    (folder / "outer").symlink_to("../outside")
    (folder / "up").symlink_to("..")
    os.mkfifo(folder / "pipe")
    return folder


def stored(folder, count=1, **entries):
    """The path of a model whose w is external."""
    proto = model(tensor(data_location=TensorProto.EXTERNAL))
    for index in range(1, count):
        proto.graph.initializer.append(tensor(name=f"w{index}", data_location=1))
    for weight in proto.graph.initializer:
        for key, value in {"location": "w.bin", "offset": "8", **entries}.items():
            weight.external_data.add(key=key, value=value)
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    return folder / "model.onnx"


@pytest.mark.parametrize("location", ["w.bin", "./w.bin", "inner", ".//w.bin"])
def test_external_data(folder, location):
    proto = load(stored(folder, location=location))
    np.testing.assert_array_equal(numpy_helper.to_array(proto.graph.initializer[0]), W)
    assert not proto.graph.initializer[0].external_data
    assert list(gg.from_onnx(folder / "model.onnx").params) == ["w"]


@pytest.mark.parametrize(
    "location",
    ["../outside", "outer", "up/outside", "sub/../../outside", "/etc/passwd", "", "a\0b"],
)
def test_external_data_outside_of_the_folder(folder, location):
    with pytest.raises(ModelError, match=r"'w'.*no file in the folder of the model"):
        load(stored(folder, location=location))


@pytest.mark.parametrize(
    "entries, message",
    [
        ({"length": "47"}, "said to have 47"),
        ({"length": "-1"}, "no whole number"),
        ({"length": "1e2"}, "no whole number"),
        ({"offset": "9"}, "end at byte 57, but .* has 56"),
        ({"offset": str(2**62)}, "end at byte"),
        ({"offset": "9" * 5000}, "no whole number"),
        ({"location": "none"}, "cannot be read"),
        ({"location": "pipe"}, "are no file"),
        ({"location": "sub"}, "are no file|cannot be read"),
    ],
)
def test_external_data_that_do_not_fit(folder, entries, message):
    with pytest.raises(ModelError, match=f"'w'.*{message}"):
        load(stored(folder, **entries))


def test_external_data_read_over_and_over(folder):
    """A small file with many tensors of one large file would fill the memory."""
    assert len(load(stored(folder, count=9)).graph.initializer) == 9
    with pytest.raises(ModelError, match=r"'w9'.*more than 8 times over"):
        load(stored(folder, count=20))


def test_a_pipe_is_not_waited_for(folder):
    with pytest.raises(ModelError, match="is no file"):
        load(folder / "pipe")


@pytest.mark.parametrize("dtype", [TensorProto.COMPLEX64, 1000, -1])
def test_inputs_of_unknown_dtypes(dtype):
    proto = model()
    proto.graph.input[0].type.tensor_type.elem_type = dtype
    with pytest.raises(ModelError, match="does not know"):
        gg.from_onnx(proto)


def test_inputs_of_extents_that_are_none():
    proto = model()
    for size in (-1, 2**31, 2**63 - 1):
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = size
        with pytest.raises(ModelError, match=f"input 'x' has the extent {size}"):
            gg.from_onnx(proto)


def test_constants_that_tvm_has_no_dtype_of():
    four_bits = numpy_helper.from_array(np.int8([1, 2]), "w")
    four_bits.data_type, four_bits.raw_data = TensorProto.INT4, b"\x12"
    proto = model(four_bits)
    proto.graph.node[0].op_type = "Add"
    with pytest.raises(ModelError):
        gg.from_onnx(proto)


@pytest.mark.parametrize("perm", [[1, -(2**63), 2], [0, 1, 2**32 + 2]])
def test_axes_of_more_than_32_bits(perm):
    """Cut off to 32 bits, as TVM does it, they are axes."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 3, 4] x) => (float[A, B, C] y) { y = Transpose <perm = [0, 1, 2]> (x) }"""
    )
    proto.graph.node[0].attribute[0].ints[:] = perm
    with pytest.raises(ModelError, match="names an axis that is none"):
        gg.from_onnx(proto)


def replaced(proto, old, new):
    """A model with a name in its file replaced by other bytes of the same length."""
    data = proto.SerializeToString()
    assert data.count(old) and len(old) == len(new)
    return onnx.ModelProto.FromString(data.replace(old, new))


@pytest.mark.parametrize("name", [b"MatMul", b"some_node", b"weight", b"x_input", b"batch_size"])
def test_names_that_are_no_text(name):
    proto = model(numpy_helper.from_array(W, "weight"))
    node = proto.graph.node[0]
    node.input[:], node.name = ["x_input", "weight"], "some_node"
    proto.graph.input[0].name = "x_input"
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch_size"
    with pytest.raises(ModelError, match="is no UTF-8"):
        load(replaced(proto, name, b"\xff" * len(name)))


def test_attributes_without_type_and_of_no_function():
    proto = model()
    attribute = proto.graph.node[0].attribute.add(name="a", i=1)
    with pytest.raises(ModelError, match=r"attribute 'a'.* has no type"):
        load(proto)
    attribute.type, attribute.ref_attr_name = onnx.AttributeProto.INT, "b"
    with pytest.raises(ModelError, match="is that of a function, but stands in none"):
        load(proto)


def test_a_tensor_in_the_place_of_a_sequence():
    """Its elements would be counted to the end of time."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2147483647] x, float[2] t) => (float[2] y) { y = SequenceInsert (x, t) }"""
    )
    with pytest.raises(ModelError, match=r"no sequence|not valid ONNX"):
        gg.from_onnx(proto)


@pytest.mark.parametrize(
    "nodes, attribute, message",
    [
        ("y, z = Split <num_outputs = 2> (x)", "num_outputs", "but it has 2 outputs"),
        (
            "y, z = Scan <num_scan_inputs = 1, body = b (float a, float c) => (float d, float e)"
            " { d = Add (a, c)  e = Identity (c) }> (i, x)",
            "num_scan_inputs",
            "but it has 2 inputs",
        ),
    ],
)
def test_counts_that_fill_the_memory(nodes, attribute, message):
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[4] x, float i) => (float[A] y, float[B] z) {{ {nodes} }}"""
    )
    [count] = [a for a in proto.graph.node[0].attribute if a.name == attribute]
    count.i = 2**31 - 1
    with pytest.raises(ModelError, match=f"its {attribute} is 2147483647, {message}"):
        gg.from_onnx(proto)


def test_operands_that_only_a_lowering_looks_at():
    """Each axis has its scale, but the zero points are those of a matrix."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (uint8[1, 3, 3, 2] x, float[3] s, uint8[3, 3] p) => (float[1, 3, 3, 2] y)
        { y = DequantizeLinear (x, s, p) }"""
    )
    with pytest.raises(gg.errors.GraphGradError):
        gg.vjp(gg.from_onnx(proto).mod, wrt=["s"])


@pytest.mark.parametrize("version", [2**31, -(2**63)])
def test_versions_of_more_than_32_bits(version):
    proto = model()
    proto.graph.node[0].domain = "ai.onnx.ml"
    proto.opset_import.add(domain="ai.onnx.ml", version=version)
    with pytest.raises(ModelError, match="which is no version"):
        load(proto)


def test_a_call_of_a_standard_function_that_lacks_an_input():
    """onnx's inliner refuses it by a ValueError."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (seq(float[N]) x) => (seq(float[N]) y, seq(float[M]) z) {
          y, z = SequenceMap <body = b (float[N] i, float[M] j) => (float[N] k, float[M] l)
            { k = Identity (i)  l = Identity (j) }> (x)
        }"""
    )
    with pytest.raises(ModelError):
        gg.from_onnx(proto)


def test_an_extent_that_may_be_1_and_is_broadcast():
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[3] x, float[N] z) => (float[3] y) { y = Max (x, z, x) }"""
    )
    with pytest.raises(gg.errors.RuleError, match="whether the extent N is 1 is known at run time"):
        gg.vjp(gg.from_onnx(proto).mod, wrt=["z"])
    gg.vjp(gg.from_onnx(proto, shapes={"z": (1,)}).mod, wrt=["z"])


@pytest.mark.parametrize("sizes", [(-1, 4), (2**31 - 1, 2**16)])
def test_weights_that_a_file_only_describes(sizes):
    """A shape of no size, or of one that fills the memory, is not made a parameter."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 4] x) => (float[N, M] y) <int64[2] s = {4, 4}>
        { w = ConstantOfShape (s)  y = MatMul (x, w) }"""
    )
    proto.graph.initializer[0].int64_data[:] = sizes
    try:
        assert "w" not in gg.from_onnx(proto).params
    except ModelError as error:
        assert str(error)


def test_functions_in_a_circle():
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[4] x) => (float[4] y) { y = own.f (x) }
        <domain: "own", opset_import: ["" : 17, "own" : 1]> f (x) => (z) { z = own.h (x) }
        <domain: "own", opset_import: ["" : 17, "own" : 1]> h (x) => (z) { z = own.f (x) }"""
    )
    with pytest.raises(ModelError, match=r"Cycle|cannot be inlined"):
        gg.from_onnx(proto)


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_corpus(file):
    """Files that once raised an error of somebody else, or are near to one that did."""
    try:
        gg.from_onnx(file)
    except gg.errors.GraphGradError as error:
        assert str(error)

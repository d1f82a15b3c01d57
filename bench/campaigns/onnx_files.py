"""ONNX files that are damaged, or made to do harm, and what importing one must come to."""

from __future__ import annotations

import math
import multiprocessing
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from campaign import Case
from mutate import INTEGERS, TEXTS, chosen, mutate_bytes, mutate_message
from onnx import TensorProto, helper, numpy_helper

import graphgrad as gg
from graphgrad import models

CORPUS = Path(__file__).parents[2] / "tests" / "frontend" / "corpus"
"""Files that once led to something else than an error of ours, or took too long."""

_LARGEST_BASE = 100_000  # bytes; what is larger makes a campaign slow
_COMPILED = 0.01  # of the files; the rest end with their gradient's graph
_SECRET = b"not for everybody" * 8


@cache
def bases(nodes: bool) -> list[bytes]:
    """The files to mutate: models, the corpus, and the standard's tests of single operators."""
    protos = [
        models.mlp((8, 6, 4)),
        models.mlp((6, 4), activation="silu"),
        models.lenet(size=12, classes=4),
        models.resnet_digits(width=8),
        models.mobilenet_v2(width=0.1, size=32, classes=4),
        models.transformer_encoder(
            layers=1, width=8, heads=2, feed_forward=8, sequence=4, classes=3
        ),
        *_programs(),
    ]
    files = [proto.SerializeToString() for proto in protos]
    files += [file.read_bytes() for file in sorted(CORPUS.glob("*.onnx"))]
    if nodes:
        # In a process of its own: the data of the tests would fill the memory of every worker.
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as executor:
            files += executor.submit(_standard_tests).result()
    return [file for file in files if len(file) <= _LARGEST_BASE]


def _standard_tests() -> list[bytes]:
    """The models of the standard's tests of single operators."""
    from node_case import NODES, cases  # noqa: PLC0415 (takes seconds)

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return [case.model.SerializeToString() for case in cases(NODES).values()]


def _programs() -> list[onnx.ModelProto]:
    """Models with inner graphs, functions, constants of each form and shape arithmetic."""
    texts = [
        """<ir_version: 8, opset_import: ["" : 17]>
        branches (float[N, 3] x, bool c) => (float[N, 3] y) {
          y = If (c) <
            then_branch = g1 () => (float[N, 3] p) { p = Tanh (x) },
            else_branch = g2 () => (float[N, 3] q) { q = Mul (x, x) }>
        }""",
        """<ir_version: 8, opset_import: ["" : 17]>
        loop (float[2, 3] x) => (float[2, 3] y)
        <int64 trips = {4}, bool keep = {1}> {
          y = Loop (trips, keep, x) <body = b (int64 i, bool k, float[2, 3] s)
            => (bool k2, float[2, 3] t) { k2 = Identity (k)  t = Sin (s) }>
        }""",
        """<ir_version: 8, opset_import: ["" : 17]>
        scan (float[2] h, float[5, 2] xs) => (float[2] last, float[5, 2] ys) {
          last, ys = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] x)
            => (float[2] t, float[2] y) { t = Add (s, x)  y = Relu (t) }> (h, xs)
        }""",
        """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        functions (float[N, 4] x) => (float[N, 4] y) <float[4] w = {1, 2, 3, 4}> {
          a = own.scaled <factor = 2.0> (x, w)  y = own.scaled <factor = 0.5> (a, w)
        }
        <domain: "own", opset_import: ["" : 17]>
        scaled <factor> (x, w) => (z) {
          f = Constant <value_float : float = @factor> ()  p = Mul (x, w)  z = Mul (p, f)
        }""",
        """<ir_version: 8, opset_import: ["" : 17]>
        shapes (float[N, 6] x) => (float[A, B] y) <int64[2] s = {-1, 3}, float[3] w = {1, 2, 3}> {
          n = Shape (x)  zero = Constant <value_int = 0> ()  g = Gather <axis = 0> (n, zero)
          r = Reshape (x, s)  y = Mul (r, w)
        }""",
        """<ir_version: 8, opset_import: ["" : 17]>
        constants (float[4] x) => (float[4] y) {
          a = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> ()
          s = Constant <value_ints = [4]> ()  b = ConstantOfShape <value = float[1] {2.0}> (s)
          c = Mul (a, b)  y = Add (x, c)
        }""",
    ]
    protos = [onnx.parser.parse_model(text) for text in texts]
    values = numpy_helper.from_array(np.float32([1, 2]), "w")
    indices = numpy_helper.from_array(np.int64([0, 3]), "")
    sparse = helper.make_sparse_tensor(values, indices, [4])
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])]
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "sparse", inputs, outputs, sparse_initializer=[sparse])
    return [*protos, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])]


def make(case: Case, rng: np.random.Generator, nodes: bool) -> Path:
    """Write a damaged file into the folder of a case, with what it refers to."""
    path = case.folder / "model.onnx"
    data = chosen(rng, bases(nodes))
    if rng.random() < 0.25:
        path.write_bytes(mutate_bytes(rng, data, chosen(rng, bases(nodes))))
        return path
    proto = onnx.ModelProto.FromString(data)
    for _ in range(int(rng.integers(1, 4))):
        if rng.random() < 0.5:
            mutate_message(rng, proto)
        else:
            chosen(rng, EDITS)(rng, proto, case.folder)
    try:
        path.write_bytes(proto.SerializeToString())
    except UnicodeEncodeError:
        path.write_bytes(mutate_bytes(rng, data))
    return path


def judge(path: Path, rng: np.random.Generator) -> None:
    """Import a file and differentiate it, some down to a step; errors of ours are for the caller.

    What a file outside of its folder holds must not come in.
    """
    model = gg.from_onnx(path)
    arrays = [*model.params.values(), *model.state.values()]
    if any(_SECRET in array.tobytes() for array in arrays):
        raise AssertionError("the model holds what stands outside of its folder")
    gg.coverage(model)
    gg.vjp(model.mod)
    if rng.random() < _COMPILED:
        step = gg.train_step(model, loss="mse")
        inputs = {name: _zeros(*ty) for name, ty in model.input_types().items()}
        step(inputs, next(iter(step.evaluate(inputs).values())))


def _zeros(shape: Any, dtype: str) -> np.ndarray:
    extents = [extent if isinstance(extent, int) else 2 for extent in shape or ()]
    if math.prod(extents) > 10**8:
        raise gg.errors.InputError("too large to try")
    ty = np.dtype(dtype) if dtype in np.sctypeDict else np.dtype(getattr(ml_dtypes, dtype))
    return np.zeros(extents, ty)


Edit = Callable[[np.random.Generator, onnx.ModelProto, Path], None]


def _tensors(proto: onnx.ModelProto) -> list[TensorProto]:
    attributes = [attribute for node in proto.graph.node for attribute in node.attribute]
    return [*proto.graph.initializer, *(a.t for a in attributes if a.HasField("t"))]


def _names(proto: onnx.ModelProto) -> list[str]:
    names = {name for node in proto.graph.node for name in (*node.input, *node.output)}
    return sorted(names) or [""]


def _rewire(rng: np.random.Generator, proto: onnx.ModelProto, folder: Path) -> None:
    """Let a node read any value, perhaps its own: a cycle."""
    node = chosen(rng, list(proto.graph.node) or [onnx.NodeProto()])
    if node.input:
        node.input[int(rng.integers(len(node.input)))] = chosen(rng, _names(proto))


def _rename(rng: np.random.Generator, proto: onnx.ModelProto, folder: Path) -> None:
    """Give two values one name."""
    node = chosen(rng, list(proto.graph.node) or [onnx.NodeProto()])
    if node.output:
        node.output[int(rng.integers(len(node.output)))] = chosen(rng, _names(proto))


def _other_operator(rng: np.random.Generator, proto: onnx.ModelProto, folder: Path) -> None:
    schemas = onnx.defs.get_all_schemas()
    for node in proto.graph.node[:1] if rng.random() < 0.5 else [_any_node(rng, proto)]:
        node.op_type = chosen(rng, schemas).name


def _any_node(rng: np.random.Generator, proto: onnx.ModelProto) -> onnx.NodeProto:
    return chosen(rng, list(proto.graph.node) or [onnx.NodeProto()])


def _opset(rng: np.random.Generator, proto: onnx.ModelProto, folder: Path) -> None:
    opset = proto.opset_import.add() if rng.random() < 0.3 else None
    for entry in [opset] if opset else proto.opset_import:
        entry.version = chosen(rng, (*INTEGERS, *range(5, 28)))


def _dimension(rng: np.random.Generator, proto: onnx.ModelProto, folder: Path) -> None:
    values = [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]
    dims = [dim for value in values for dim in value.type.tensor_type.shape.dim]
    if dims:
        chosen(rng, dims).dim_value = chosen(rng, INTEGERS)


def _tensor_size(rng: np.random.Generator, proto: onnx.ModelProto, folder: Path) -> None:
    """Let a tensor say another size than it has data for."""
    tensors = _tensors(proto)
    if tensors:
        tensor = chosen(rng, tensors)
        match int(rng.integers(4)):
            case 0:
                tensor.dims.append(chosen(rng, INTEGERS))
            case 1 if tensor.dims:
                tensor.dims[int(rng.integers(len(tensor.dims)))] = chosen(rng, INTEGERS)
            case 2:
                tensor.dims.extend([1] * 70)
            case _:
                tensor.raw_data = mutate_bytes(rng, tensor.raw_data or b"\0" * 16)


def _retype(rng: np.random.Generator, proto: onnx.ModelProto, folder: Path) -> None:
    tensors = _tensors(proto)
    if tensors:
        chosen(rng, tensors).data_type = int(rng.integers(-1, 32))


def _integers(rng: np.random.Generator, proto: onnx.ModelProto, folder: Path) -> None:
    """Replace the numbers of an attribute, or of a small tensor of integers."""
    attributes = [a for node in proto.graph.node for a in node.attribute]
    tensors = [t for t in _tensors(proto) if t.data_type == TensorProto.INT64 and t.raw_data]
    if tensors and rng.random() < 0.5:
        tensor = chosen(rng, tensors)
        values = np.frombuffer(tensor.raw_data[: len(tensor.raw_data) // 8 * 8], np.int64).copy()
        if values.size:
            values[int(rng.integers(values.size))] = chosen(rng, INTEGERS)
            tensor.raw_data = values.tobytes()
    elif attributes:
        attribute = chosen(rng, attributes)
        if attribute.ints and rng.random() < 0.8:
            attribute.ints[int(rng.integers(len(attribute.ints)))] = chosen(rng, INTEGERS)
        else:
            attribute.i = chosen(rng, INTEGERS)


def _sparse(rng: np.random.Generator, proto: onnx.ModelProto, folder: Path) -> None:
    """Add a sparse tensor, perhaps of a size that no memory has, in the place of a weight."""
    initializers = list(proto.graph.initializer)
    if not initializers:
        return
    old = chosen(rng, initializers)
    values = numpy_helper.from_array(np.float32([1, 2]), old.name)
    indices = numpy_helper.from_array(rng.integers(-3, 12, 2 if rng.random() < 0.8 else 3), "")
    dims = old.dims if rng.random() < 0.5 else [chosen(rng, INTEGERS), chosen(rng, (1, 4, 2**20))]
    proto.graph.sparse_initializer.append(onnx.SparseTensorProto(values=values, indices=indices))
    proto.graph.sparse_initializer[-1].dims.extend(dims)
    if rng.random() < 0.8:
        proto.graph.initializer.remove(old)


def _external(rng: np.random.Generator, proto: onnx.ModelProto, folder: Path) -> None:
    """Keep a tensor's data in a file: in the folder, outside of it, or behind a link."""
    tensors = _tensors(proto)
    if not tensors:
        return
    tensor = chosen(rng, tensors)
    data = tensor.raw_data or _SECRET
    outside = folder.parent / f"{folder.name}.secret"
    outside.write_bytes(_SECRET * (len(data) // len(_SECRET) + 1))
    (folder / "weights.bin").write_bytes(data if rng.random() < 0.7 else mutate_bytes(rng, data))
    link = folder / "link.bin"
    if not link.exists():
        link.symlink_to(outside if rng.random() < 0.5 else "weights.bin")
    if not (folder / "pipe").exists():
        os.mkfifo(folder / "pipe")
    places = ["weights.bin"] * 3 + ["./weights.bin", "link.bin", "pipe", ".", "model.onnx"]
    places += [str(outside), f"../{outside.name}", f"sub/../../{outside.name}", "/dev/zero"]
    tensor.ClearField("raw_data")
    for key, value in [
        ("location", chosen(rng, places) if rng.random() < 0.9 else chosen(rng, TEXTS)),
        ("length", str(len(data) if rng.random() < 0.6 else chosen(rng, INTEGERS))),
        ("offset", "0" if rng.random() < 0.6 else str(chosen(rng, (*INTEGERS, "x", "1e9")))),
    ]:
        if rng.random() < 0.85:
            tensor.external_data.add(key=key, value=value)
    tensor.data_location = TensorProto.EXTERNAL


def _functions(rng: np.random.Generator, proto: onnx.ModelProto, folder: Path) -> None:
    """Put a node into a function, that into another one, and so on; perhaps in a circle."""
    node = _any_node(rng, proto)
    count = int(rng.integers(1, 6))
    inputs, outputs = [n for n in node.input if n], [n for n in node.output if n]
    for index in range(count):
        function = proto.functions.add(name=f"f{index}", domain="own")
        function.input.extend(inputs)
        function.output.extend(outputs)
        function.opset_import.add(domain="", version=17)
        function.opset_import.add(domain="own", version=1)
        called = function.node.add()
        if index + 1 < count or rng.random() < 0.3:
            name = f"f{(index + 1) % count}"
            called.CopyFrom(helper.make_node(name, inputs, outputs, domain="own"))
        else:
            called.CopyFrom(node)
    node.CopyFrom(helper.make_node("f0", inputs, outputs, domain="own"))
    proto.opset_import.add(domain="own", version=1)


def _inner_graph(rng: np.random.Generator, proto: onnx.ModelProto, folder: Path) -> None:
    """Put a node of the graph into the branch of an If, or the body of a Loop."""
    node = _any_node(rng, proto)
    outputs = [helper.make_tensor_value_info(name, 1, None) for name in node.output if name]
    inner = helper.make_graph([node], "inner", [], outputs)
    condition = numpy_helper.from_array(np.array(rng.random() < 0.5), "condition")
    if rng.random() < 0.6:
        proto.graph.initializer.append(condition)
    new = helper.make_node("If", ["condition"], list(node.output), "inner")
    new.attribute.append(helper.make_attribute("then_branch", inner))
    new.attribute.append(helper.make_attribute("else_branch", inner))
    if rng.random() < 0.3:
        new = helper.make_node("Loop", ["", "condition"], list(node.output), "inner", body=inner)
    node.CopyFrom(new)


def _expand(rng: np.random.Generator, proto: onnx.ModelProto, folder: Path) -> None:
    """Let a small file ask for a large tensor."""
    sizes = numpy_helper.from_array(np.int64([chosen(rng, INTEGERS), 2**16]), "sizes")
    proto.graph.initializer.append(sizes)
    operator = chosen(rng, ("ConstantOfShape", "Expand", "Tile", "Range", "OneHot", "EyeLike"))
    inputs = ["sizes"] if operator == "ConstantOfShape" else [chosen(rng, _names(proto)), "sizes"]
    proto.graph.node.insert(0, helper.make_node(operator, inputs, ["large"], "large"))
    if proto.graph.output:
        proto.graph.node.append(
            helper.make_node("Add", [proto.graph.output[0].name, "large"], ["sum"], "sum")
        )
        proto.graph.output[0].name = "sum"


EDITS: tuple[Edit, ...] = (
    _rewire,
    _rename,
    _other_operator,
    _opset,
    _dimension,
    _tensor_size,
    _tensor_size,
    _retype,
    _integers,
    _integers,
    _sparse,
    _external,
    _functions,
    _inner_graph,
    _expand,
)

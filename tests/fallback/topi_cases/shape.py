"""Functions that move elements, pad them, or read them where integers say."""

from tvm import te, topi

from .case import Case, case, integers, reals


def _constants(values: list[int], dtype: str = "int32") -> te.Tensor:
    """Return a tensor of integers, as a stage."""

    def body(i):
        chosen = te.const(values[-1], dtype)
        for position, value in enumerate(values[:-1]):
            chosen = te.if_then_else(i == position, te.const(value, dtype), chosen)
        return chosen

    return te.compute((len(values),), body, name="constants")


_ONE = te.const(1.0, "float64")

CASES: list[Case] = [
    case("full", lambda v: topi.full((2, 3), "float64", v[0]), (1,)),
    case("full_like", lambda x: topi.full_like(x, 1.5), (2, 3)),
    case("full_like", lambda x, v: topi.full_like(x, v[1]), (2, 3), (2,), variant="read"),
    case("arange", lambda v: topi.arange(v[0], v[0] + 4.0, _ONE, "float64"), (1,)),
    case("eye", lambda: topi.eye(3, 4, 1, "float64")),
    case("transpose", lambda x: topi.transpose(x, (2, 0, 1)), (2, 3, 4)),
    case("transpose", topi.transpose, (2, 3), variant="reversed"),
    case("reshape", lambda x: topi.reshape(x, (6, 4)), (2, 3, 4)),
    case("reshape", lambda x: topi.reshape(x, (4, 3, 5)), (6, 10), variant="across"),
    case("expand_dims", lambda x: topi.expand_dims(x, 1, 2), (2, 3)),
    case("squeeze", lambda x: topi.squeeze(x, [0]), (1, 3, 1)),
    case("squeeze", topi.squeeze, (1, 3, 1), variant="all"),
    case("broadcast_to", lambda x: topi.broadcast_to(x, (4, 2, 3)), (2, 1)),
    case("expand_like", lambda x, y: topi.expand_like(x, y, [1]), (2, 3), (2, 4, 3)),
    case("flip", lambda x: topi.flip(x, 1), (2, 5)),
    case("tile", lambda x: topi.tile(x, (2, 3)), (2, 3)),
    case("repeat", lambda x: topi.repeat(x, 3, 1), (2, 3)),
    case("stack", lambda *xs: topi.stack(xs, 1), (2, 3), (2, 3)),
    case("concatenate", lambda *xs: topi.concatenate(xs, -1), (2, 3), (2, 1), (2, 4)),
    case("split", lambda x: topi.split(x, [1, 4], 1), (2, 6)),
    case("split", lambda x: topi.split(x, 3, 0), (6, 2), variant="equal parts"),
    case("strided_slice",
         lambda x: topi.strided_slice(x, [4, 0], [0, 6], [-2, 3]), (6, 7)),
    case("strided_slice",
         lambda x: topi.strided_slice(x, [1], [5], [2], [1]), (2, 6), variant="one axis"),
    case("dynamic_strided_slice",
         lambda x, b, e, s: topi.dynamic_strided_slice(x, b, e, s, (2, 3)),
         (5, 7), integers(2, below=1, dtype="int64"), integers(2, low=5, below=6, dtype="int64"),
         integers(2, low=2, below=3, dtype="int64")),
    case("strided_set",
         lambda x, v: topi.strided_set(x, v, _constants([1, 0]), _constants([5, 4]),
                                       _constants([2, 2])),
         (6, 4), (2, 2)),
    case("slice_scatter", lambda x, v: topi.slice_scatter(x, v, 1, 6, 2, 1), (2, 7), (2, 3)),
    case("sliding_window", lambda x: topi.sliding_window(x, 1, [2, 3], [1, 2]), (2, 4, 7)),
    case("layout_transform", lambda x: topi.layout_transform(x, "NCHW", "NCHW4c"), (1, 8, 2, 3)),
    case("layout_transform", lambda x: topi.layout_transform(x, "NCHW4c", "NHWC"), (1, 2, 2, 3, 4),
         variant="back"),
    case("trilu", lambda x: topi.trilu(x, te.const(1, "int32"), True), (2, 4, 5)),
    case("trilu", lambda x: topi.trilu(x, te.const(-1, "int32"), False), (4, 3), variant="lower"),
    case("matrix_set_diag", lambda x, d: topi.matrix_set_diag(x, d, (-1, 1)),
         (2, 3, 4), (2, 3, 3)),
    case("meshgrid", lambda *xs: topi.meshgrid(xs, "ij"), (2,), (3,)),
    case("meshgrid", lambda *xs: topi.meshgrid(xs, "xy"), (2,), (3,), (4,), variant="xy"),
    case("reverse_sequence", topi.reverse_sequence, (3, 5), integers(3, low=1, below=6)),
    case("sequence_mask", lambda x, n: topi.sequence_mask(x, n, 0.5, 1),
         (3, 5), integers(3, low=1, below=6)),
    case(
        "one_hot",
        lambda i, v: topi.one_hot(i, v[0], v[1], 4, -1, "float64"),
        integers(3, below=4),
        (2,),
    ),
    case("unravel_index", topi.unravel_index, integers(5, below=6), integers(2, low=2, below=4)),
    case("shape", topi.shape, (2, 3)),
    case("sparse_to_dense", lambda i, v, d: topi.sparse_to_dense(i, (5,), v, d()),
         integers(3, below=5), (3,), ()),
    case("index_tensor", lambda x, i, j: topi.index_tensor(x, [i, j]),
         (4, 5, 2), integers(3, below=4), integers(2, 1, below=5)),
    case("take", lambda x, i: topi.take(x, i, 1), (2, 5, 3), integers(2, 2, below=5)),
    case("take", topi.take, (2, 3), integers(4, below=6), variant="flat"),
    case("take", lambda x, i: topi.take(x, i, 1, mode="clip"),
         (2, 5), integers(6, low=-3, below=8), variant="clip"),
    case("take", lambda x, i: topi.take(x, i, 0, mode="wrap"),
         (4, 2), integers(6, low=-3, below=8), variant="wrap"),
    case("gather", lambda x, i: topi.gather(x, 1, i), (3, 5), integers(3, 4, below=5)),
    case("gather", lambda x, i: topi.gather(x, -2, i), (4, 3), integers(2, 3, below=4),
         variant="negative axis"),
    case("gather_nd", topi.gather_nd, (4, 4, 2), integers(2, 3, below=4)),
    case("gather_nd", lambda x, i: topi.gather_nd(x, i, 1), (2, 4, 3), integers(1, 2, 3, below=4),
         variant="batches"),
    case("adv_index", lambda x, i, j: topi.adv_index(x, [i, j]),
         (4, 5, 2), integers(3, below=4), integers(3, below=5)),
    *(
        case("scatter_elements",
             lambda x, i, u, mode=mode: topi.scatter_elements(x, i, u, 1, mode),
             reals(3, 4, low=0.5, high=2), integers(3, 5, below=4, dtype="int64"),
             reals(3, 5, low=0.5, high=2), variant=mode)
        for mode in ("update", "add", "mul", "mean", "min", "max")
    ),
    *(
        case("scatter_nd",
             lambda x, i, u, mode=mode: topi.scatter_nd(x, i, u, mode),
             reals(3, 4, low=0.5, high=2), integers(1, 5, below=3, dtype="int64"),
             reals(5, 4, low=0.5, high=2), variant=mode)
        for mode in ("update", "add", "mul", "min", "max")
    ),
    *(
        case("index_put",
             lambda x, i, j, v, add=add: topi.index_put(x, [i, j], v, add),
             (3, 4), integers(5, below=3, dtype="int64"), integers(5, below=4, dtype="int64"),
             (5,), variant="add" if add else "")
        for add in (False, True)
    ),
    case("nn.pad", lambda x: topi.nn.pad(x, (1, 0), (0, 2), 0.5), (2, 3)),
    case("nn.mirror_pad", lambda x: topi.nn.mirror_pad(x, (1, 2), (2, 1), "SYMMETRIC"), (3, 4)),
    case("nn.mirror_pad", lambda x: topi.nn.mirror_pad(x, (1, 2), (2, 1), "REFLECT"), (3, 4),
         variant="reflect"),
    case("nn.reflect_pad", lambda x: topi.nn.reflect_pad(x, (1, 2), (2, 1)), (3, 4)),
    case("nn.replicate_pad", lambda x: topi.nn.replicate_pad(x, (1, 2), (2, 0)), (3, 2)),
    case("nn.circular_pad", lambda x: topi.nn.circular_pad(x, (1, 2), (2, 0)), (3, 4)),
    case("nn.dilate", lambda x: topi.nn.dilate(x, (2, 3)), (3, 2)),
    case("nn.flatten", topi.nn.flatten, (2, 3, 2)),
    case("nn.depth_to_space", lambda x: topi.nn.depth_to_space(x, 2), (1, 8, 2, 3)),
    case("nn.depth_to_space", lambda x: topi.nn.depth_to_space(x, 2, "NHWC", "CRD"), (1, 2, 3, 8),
         variant="CRD"),
    case("nn.space_to_depth", lambda x: topi.nn.space_to_depth(x, 2), (1, 2, 4, 6)),
    case("nn.space_to_batch_nd", lambda x: topi.nn.space_to_batch_nd(x, [2, 2], [0, 1], [0, 1]),
         (1, 4, 4, 2)),
    case("nn.fifo_buffer", lambda x, b: topi.nn.fifo_buffer(x, b, 1), (2, 2, 3), (2, 5, 3)),
    case("nn.bitpack",
         lambda x: topi.nn.bitpack(x, 2, 1, 2, "uint8"), integers(1, 8, 2, 2, below=4)),
]  # fmt: skip

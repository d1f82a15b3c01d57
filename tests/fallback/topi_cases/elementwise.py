"""Functions of one element, of two, and choices between elements."""

from tvm import te, topi

from .case import Case, booleans, case, integers, reals, spread

_UNARY = {
    "exp": reals(2, 3),
    "log": reals(2, 3, low=0.2, high=2),
    "log2": reals(2, 3, low=0.2, high=2),
    "log10": reals(2, 3, low=0.2, high=2),
    "sqrt": reals(2, 3, low=0.2, high=2),
    "rsqrt": reals(2, 3, low=0.2, high=2),
    "sin": reals(2, 3),
    "cos": reals(2, 3),
    "tan": reals(2, 3),
    "tanh": reals(2, 3),
    "sinh": reals(2, 3),
    "cosh": reals(2, 3),
    "asin": reals(2, 3, low=-0.8, high=0.8),
    "acos": reals(2, 3, low=-0.8, high=0.8),
    "atan": reals(2, 3),
    "asinh": reals(2, 3),
    "acosh": reals(2, 3, low=1.2, high=3),
    "atanh": reals(2, 3, low=-0.8, high=0.8),
    "sigmoid": reals(2, 3),
    "erf": reals(2, 3),
    "abs": spread(2, 3),
    "negative": reals(2, 3),
    "sign": spread(2, 3),
    "floor": reals(2, 3, low=0.1, high=0.9),
    "ceil": reals(2, 3, low=0.1, high=0.9),
    "trunc": reals(2, 3, low=0.1, high=0.9),
    "round": reals(2, 3, low=0.6, high=1.4),
    "identity": reals(2, 3),
    "fast_exp": reals(2, 3, dtype="float32"),
    "fast_tanh": reals(2, 3),
    "fast_erf": reals(2, 3, dtype="float32"),
    "nn.relu": spread(2, 3),
}

_BINARY = {
    "add": reals(3),
    "subtract": reals(3),
    "multiply": reals(3),
    "divide": reals(3, low=0.4, high=2),
    "maximum": reals(3),
    "minimum": reals(3),
    "power": reals(3, low=0.4, high=2),
    "floor_divide": reals(3, low=0.4, high=0.6),
    "floor_mod": reals(3, low=0.4, high=0.6),
    "mod": reals(3, low=0.4, high=0.6),
    "log_add_exp": reals(3),
}

_PREDICATES = ("isnan", "isinf", "isfinite")

_COMPARISONS = ("greater", "less", "equal", "not_equal", "greater_equal", "less_equal")

_LOGICAL = ("logical_and", "logical_or", "logical_xor")

_BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")


def _function(name: str):
    found = topi
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _ceil_log2(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda i: topi.ceil_log2(x(i)), name="ceil_log2")


CASES: list[Case] = [
    *(case(name, _function(name), values) for name, values in _UNARY.items()),
    *(case(name, _function(name), reals(2, 3)) for name in _PREDICATES),
    *(
        case(name, _function(name), reals(2, 3, low=0.65, high=0.95), divisor)
        for name, divisor in _BINARY.items()
    ),
    case("add", topi.add, (2, 1, 3), (4, 1), variant="both broadcast"),
    case("multiply", topi.multiply, (2, 1, 3), (4, 1), variant="both broadcast"),
    case("divide", topi.divide, (3,), reals(2, 3, low=0.4, high=2), variant="row by matrix"),
    case("power", lambda x: topi.power(x, 3.0), spread(4), variant="constant, negative base"),
    case("maximum", lambda x: topi.maximum(x, 0.1), spread(2, 3), variant="with a constant"),
    case("mod", topi.mod, reals(4, low=-2.9, high=-2.1), reals(4, low=0.9, high=1.0),
         variant="negative"),
    case("floor_mod", topi.floor_mod, reals(4, low=-2.6, high=-2.1), reals(4, low=0.9, high=1.0),
         variant="negative"),
    *(case(name, _function(name), (2, 3), (3,)) for name in _COMPARISONS),
    *(case(name, _function(name), booleans(2, 3), booleans(3)) for name in _LOGICAL),
    *(
        case(name, _function(name), integers(2, 3, below=5), integers(3, below=3))
        for name in _BITWISE
    ),
    case("ceil_log2", _ceil_log2, reals(3, low=4.2, high=7)),
    case("clip", lambda x: topi.clip(x, -0.4, 0.6), spread(2, 4)),
    case("cast", lambda x: topi.cast(x, "float64"), reals(2, 3, dtype="float32")),
    case("where", topi.where, booleans(2, 3), (2, 3), (2, 3)),
    case("where", topi.where, booleans(3), (2, 3), (2, 1), variant="broadcast"),
    case("elemwise_sum", lambda *xs: topi.elemwise_sum(xs), (2, 3), (2, 3), (2, 3)),
    case("nn.leaky_relu", lambda x: topi.nn.leaky_relu(x, 0.1), spread(2, 3)),
    case("nn.prelu", topi.nn.prelu, spread(2, 3, 2), (3,)),
    case("nn.prelu", lambda x, a: topi.nn.prelu(x, a, 2), spread(2, 3, 2), (2,),
         variant="last axis"),
    case("nn.scale_shift_nchw", topi.nn.scale_shift_nchw, (2, 3, 2, 2), (3,), (3,)),
]  # fmt: skip

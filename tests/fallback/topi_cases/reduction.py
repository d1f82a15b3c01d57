"""Reductions, cumulative functions, sorting, signals, recurrences, losses."""

from tvm import topi

from .case import Case, booleans, case, integers, reals, singles, spread


def _lstm(**options):
    def call(xs, wi, wh, bi, bh, h, c, *more):
        return topi.nn.lstm(xs, wi, wh, bi, bh, h, c, *more, **options)

    return call


_LSTM = (
    singles(3, 2, 3), singles(8, 3), singles(8, 2), singles(8), singles(8), singles(2, 2),
    singles(2, 2),
)  # fmt: skip

CASES: list[Case] = [
    case("sum", topi.sum, (2, 3), variant="all"),
    case("sum", lambda x: topi.sum(x, -2, True), (2, 3, 4), variant="negative axis, kept"),
    case("sum", lambda x: topi.sum(x, [0, 2]), (2, 3, 4), variant="two axes"),
    case("max", lambda x: topi.max(x, 1), spread(2, 5)),
    case("max", topi.max, spread(2, 5), variant="all"),
    case("min", lambda x: topi.min(x, -1, True), spread(2, 5)),
    case("min", lambda x: topi.min(x, [0, 2]), spread(2, 3, 2), variant="two axes"),
    case("prod", lambda x: topi.prod(x, 1), (2, 4)),
    case("prod", lambda x: topi.prod(x, 0, True),
         integers(3, 4, low=-1, below=3, dtype="float64"), variant="with zeros"),
    case("argmax", lambda x: topi.argmax(x, 1), spread(2, 5)),
    case("argmin", lambda x: topi.argmin(x, 1), spread(2, 5)),
    case("all", lambda x: topi.all(x, 1), booleans(2, 3)),
    case("any", lambda x: topi.any(x, 1), booleans(2, 3)),
    case("collapse_sum", lambda x: topi.collapse_sum(x, (3, 1)), (2, 3, 4)),
    case("cumsum", lambda x: topi.cumsum(x, 1), (2, 4)),
    case("cumsum", topi.cumsum, (2, 3), variant="all"),
    case("cumsum", lambda x: topi.cumsum(x, 0, exclusive=True), (4, 2), variant="exclusive"),
    case("cumprod", lambda x: topi.cumprod(x, 1), (2, 4)),
    case("cumprod", lambda x: topi.cumprod(x, 0, exclusive=True), (4, 2), variant="exclusive"),
    case("cumprod", lambda x: topi.cumprod(x, 0),
         integers(5, 3, low=-1, below=3, dtype="float64"), variant="with zeros"),
    case("sort", topi.sort, spread(3, 5)),
    case("sort", lambda x: topi.sort(x, 0, False), spread(5, 3), variant="first axis, descending"),
    case("argsort", lambda x: topi.argsort(x, dtype="float64"), spread(2, 5)),
    case("topk", lambda x: topi.topk(x, 2), spread(3, 5)),
    case("topk", lambda x: topi.topk(x, 3, 0, "values", True), spread(5, 2),
         variant="values alone, smallest first"),
    case("searchsorted", topi.searchsorted, reals(5), (3,)),
    case("stft", lambda x, w: topi.stft(x, 4, 2, 4, w, False, True, (2, 3, 3, 2)), (2, 8), (4,)),
    case("stft", lambda x, w: topi.stft(x, 4, 3, 4, w, True, False, (1, 4, 3, 2)), (1, 10), (4,),
         variant="normalized, two sides"),
    case("dft", lambda re, im: topi.dft(re, im, False), (2, 5), (2, 5)),
    case("dft", lambda re, im: topi.dft(re, im, True), (2, 5), (2, 5), variant="inverse"),
    case("nn.lstm", _lstm(), *_LSTM),
    case("nn.lstm", _lstm(reverse=True, weight_layout="OGIF"), *_LSTM,
         variant="backwards, other layout"),
    case("nn.lstm", lambda *xs: topi.nn.lstm(*xs[:7], p_i=xs[7], p_f=xs[8], p_o=xs[9]), *_LSTM,
         *[singles(2, 2)] * 3, variant="peepholes"),
    case("nn.nll_loss",
         lambda x, t, w: topi.nn.nll_loss(x, t, w, "mean", 1),
         (4, 3), integers(4, below=3), reals(3, low=0.5, high=2)),
    case("nn.nll_loss",
         lambda x, t, w: topi.nn.nll_loss(x, t, w, "none", -100),
         (2, 3, 4), integers(2, 4, below=3), reals(3, low=0.5, high=2), variant="none, pixels"),
    case("nn.nll_loss",
         lambda x, t, w: topi.nn.nll_loss(x, t, w, "sum", -100),
         (4, 3), integers(4, below=3), reals(3, low=0.5, high=2), variant="sum"),
]  # fmt: skip

"""What the ops of registry/pool.py are in torch."""

from tests.registry.torch_functions.layout import to_layout

LAYOUTS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


def functions(torch):
    """Return torch's function for each op that it has."""
    nn = torch.nn.functional

    def pooled(function, rank, x, layout, out_layout):
        """Apply a function of torch to x in torch's layout."""
        layout = layout or LAYOUTS[rank]
        y = function(to_layout(x, layout, LAYOUTS[rank]))
        return to_layout(y, LAYOUTS[rank], out_layout or layout)

    def max_pool(rank):
        pool = getattr(nn, f"max_pool{rank}d")

        def function(
            x,
            pool_size,
            strides,
            padding=0,
            dilation=1,
            ceil_mode=False,
            layout=None,
            out_layout=None,
            **_,
        ):
            before, after = _padding(padding, rank)
            widths = [
                w for pair in zip(reversed(before), reversed(after), strict=True) for w in pair
            ]

            def torch_pool(x):
                padded = nn.pad(x, widths, value=-float("inf"))
                if ceil_mode:  # what the mode adds lies beyond the padding, and is not read
                    return pool(x, pool_size, strides, before, dilation, ceil_mode)
                return pool(padded, pool_size, strides, 0, dilation)

            if ceil_mode and before != after:
                return None
            return pooled(torch_pool, rank, x, layout, out_layout)

        return function

    def avg_pool(rank):
        pool = getattr(nn, f"avg_pool{rank}d")

        def function(
            x,
            pool_size,
            strides,
            padding=0,
            dilation=1,
            ceil_mode=False,
            count_include_pad=rank != 2,  # the defaults of relax.op.nn
            layout=None,
            out_layout=None,
        ):
            before, after = _padding(padding, rank)
            sizes = (pool_size,) * rank if isinstance(pool_size, int) else pool_size
            too_wide = any(2 * pad > size for pad, size in zip(before, sizes, strict=True))
            if dilation != 1 or before != after or too_wide:
                return None  # torch pads both sides alike, by half a window at most
            return pooled(
                lambda x: pool(x, pool_size, strides, before, ceil_mode, count_include_pad),
                rank,
                x,
                layout,
                out_layout,
            )

        return function

    def adaptive_avg_pool(rank):
        pool = getattr(nn, f"adaptive_avg_pool{rank}d")

        def function(x, output_size=None, layout=None, out_layout=None):
            if output_size is None:
                return x.clone()
            return pooled(lambda x: pool(x, output_size), rank, x, layout, out_layout)

        return function

    kinds = {
        "adaptive_avg_pool": adaptive_avg_pool,
        "avg_pool": avg_pool,
        "max_pool": max_pool,
    }
    return {f"relax.nn.{name}{r}d": kind(r) for name, kind in kinds.items() for r in LAYOUTS}


def _padding(value, rank):
    """Return the padding before and after each axis."""
    widths = [value] * rank if isinstance(value, int) else list(value)
    return (widths[:rank], widths[rank:]) if len(widths) == 2 * rank else (widths, widths)

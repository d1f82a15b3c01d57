"""What the ops of registry/reduce.py are in torch."""


def functions(torch):
    """Return torch's function for each op that it has."""

    def axes(attributes):
        return attributes.get("axis"), attributes.get("keepdims", False)

    def reduce(function):
        def reduced(x, **attributes):
            axis, keepdims = axes(attributes)
            axis = list(range(x.ndim)) if axis is None else axis
            if not axis:
                return function(x.reshape(*x.shape, 1), dim=[-1], keepdim=False)
            return function(x, dim=axis, keepdim=keepdims)

        return reduced

    def extremum(function):
        # torch refuses the extremum of nothing.
        return lambda x, **attributes: reduce(function)(x, **attributes) if x.numel() else None

    def prod(x, dim, keepdim):
        for axis in sorted((axis % x.ndim for axis in dim), reverse=True):
            x = torch.prod(x, axis, keepdim)
        return x

    def median(x, axis=None, keepdims=False):
        return torch.median(x) if axis is None else torch.median(x, axis[0], keepdims)[:1]

    def population(function):
        return reduce(lambda x, dim, keepdim: function(x, dim, correction=0, keepdim=keepdim))

    return {
        "relax.max": extremum(torch.amax),
        "relax.mean": reduce(torch.mean),
        "relax.min": extremum(torch.amin),
        "relax.median": median,
        "relax.prod": reduce(prod),
        "relax.std": population(torch.std),
        "relax.sum": reduce(torch.sum),
        "relax.variance": population(torch.var),
    }

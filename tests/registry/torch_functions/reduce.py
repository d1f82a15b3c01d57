"""What the ops of registry/reduce.py are in torch."""


def functions(torch):
    """Return torch's function for each op that it has."""

    def axes(attributes):
        return attributes.get("axis"), attributes.get("keepdims", False)

    def reduce(function):
        def reduced(x, **attributes):
            axis, keepdims = axes(attributes)
            axis = list(range(x.ndim)) if axis is None else axis
            return function(x, dim=axis, keepdim=keepdims)

        return reduced

    return {
        "relax.max": reduce(torch.amax),
        "relax.mean": reduce(torch.mean),
        "relax.min": reduce(torch.amin),
        "relax.sum": reduce(torch.sum),
    }

"""What the ops of registry/activation.py are in torch."""


def functions(torch):
    """Return torch's function for each op that it has."""
    nn = torch.nn.functional

    def prelu(x, alpha, axis):
        return torch.where(x > 0, x, (alpha * x.movedim(axis, -1)).movedim(-1, axis))

    return {
        "relax.nn.gelu": nn.gelu,
        "relax.nn.gelu_tanh": lambda x: nn.gelu(x, approximate="tanh"),
        "relax.nn.leakyrelu": lambda x, alpha: nn.leaky_relu(x, negative_slope=alpha),
        "relax.nn.prelu": prelu,
        "relax.nn.relu": torch.relu,
        "relax.nn.selu": nn.selu,
        "relax.nn.silu": nn.silu,
        "relax.nn.softplus": nn.softplus,
        "relax.sigmoid": torch.sigmoid,
    }

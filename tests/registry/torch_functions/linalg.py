"""What the ops of registry/linalg.py are in torch."""


def functions(torch):
    """Return torch's function for each op that it has."""

    return {
        "relax.matmul": torch.matmul,
    }

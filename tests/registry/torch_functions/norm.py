"""What the ops of registry/norm.py are in torch."""


def functions(torch):
    """Return torch's function for each op that it has."""
    nn = torch.nn.functional

    def batch_norm(
        x,
        gamma,
        beta,
        mean,
        variance,
        axis,
        epsilon=1e-5,
        training=True,
        scale=True,
        center=True,
        **_,
    ):
        y = nn.batch_norm(
            x.movedim(axis, 1),
            mean.detach().clone(),
            variance.detach().clone(),
            gamma if scale else None,
            beta if center else None,
            training,
            eps=epsilon,
        )
        return y.movedim(1, axis)

    return {
        "relax.nn.batch_norm": batch_norm,
    }

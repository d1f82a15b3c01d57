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

    def normalized(x, axes, epsilon, center=True):
        centered = x - x.mean(axes, keepdim=True) if center else x
        return centered / torch.sqrt((centered * centered).mean(axes, keepdim=True) + epsilon)

    def along(parameter, axes, rank):
        axes = [axis % rank for axis in axes]
        order = sorted(range(len(axes)), key=axes.__getitem__)
        extents = dict(zip(axes, parameter.shape, strict=True))
        return parameter.permute(order).reshape([extents.get(axis, 1) for axis in range(rank)])

    def affine(y, gamma, beta, axes, scale, center):
        y = y * along(gamma, axes, y.ndim) if scale else y
        return y + along(beta, axes, y.ndim) if center else y

    def group_norm(
        x, gamma, beta, num_groups, channel_axis, axes, epsilon=1e-5, scale=True, center=True
    ):
        others = {axis % x.ndim for axis in axes}
        if others == set(range(2, x.ndim)) and channel_axis == 1:
            # torch's own backward pass fails where only one of both is absent.
            gamma = gamma if scale else torch.ones_like(gamma)
            beta = beta if center else torch.zeros_like(beta)
            return nn.group_norm(x, num_groups, gamma, beta, epsilon)
        channel = channel_axis % x.ndim
        split = x.unflatten(channel, (num_groups, -1))
        reduced = [channel + 1, *(a if a < channel else a + 1 for a in others)]
        y = normalized(split, reduced, epsilon).flatten(channel, channel + 1)
        return affine(y, gamma, beta, [channel], scale, center)

    def instance_norm(x, gamma, beta, channel_axis, axes, epsilon=1e-5, scale=True, center=True):
        if channel_axis == 1:
            gamma, beta = gamma if scale else None, beta if center else None
            return nn.instance_norm(x, weight=gamma, bias=beta, eps=epsilon)
        return affine(normalized(x, axes, epsilon), gamma, beta, [channel_axis], scale, center)

    def layer_norm(x, gamma, beta, axes, epsilon=1e-5, scale=True, center=True):
        if [axis % x.ndim for axis in axes] == list(range(x.ndim - len(axes), x.ndim)):
            gamma, beta = gamma if scale else None, beta if center else None
            return nn.layer_norm(x, [x.shape[axis] for axis in axes], gamma, beta, epsilon)
        return affine(normalized(x, axes, epsilon), gamma, beta, axes, scale, center)

    def rms_norm(x, gamma, axes, epsilon=1e-5):
        if [axis % x.ndim for axis in axes] == list(range(x.ndim - len(axes), x.ndim)):
            return nn.rms_norm(x, [x.shape[axis] for axis in axes], gamma, epsilon)
        return normalized(x, axes, epsilon, center=False) * along(gamma, axes, x.ndim)

    return {
        "relax.nn.batch_norm": batch_norm,
        "relax.nn.group_norm": group_norm,
        "relax.nn.instance_norm": instance_norm,
        "relax.nn.layer_norm": layer_norm,
        "relax.nn.rms_norm": rms_norm,
    }

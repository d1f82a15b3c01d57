"""What the ops of registry/loss.py are in torch."""


def functions(torch):
    """Return torch's function for each op that it has."""
    nn = torch.nn.functional

    def nll_loss(p, t, w=None, reduction="mean", ignore_index=-100):
        w = w.detach() if w is not None else None  # torch has no derivative there; ours is checked
        return nn.nll_loss(p, t.long(), w, reduction=reduction, ignore_index=ignore_index)

    def cross_entropy_with_logits(x, y):
        return -(x * y).sum() / (x.shape[0] if x.ndim > 1 else 1)

    return {
        "relax.nn.cross_entropy_with_logits": cross_entropy_with_logits,
        "relax.nn.nll_loss": nll_loss,
    }

"""What the ops of registry/attention.py are in torch."""


def functions(torch):
    """Return torch's function for each op that it has."""
    nn = torch.nn.functional

    def attention(q, k, v, bias=None, scale=None, causal_mask=None, window_size=None):
        queries, keys = q.shape[1], k.shape[1]
        offset = abs(keys - queries) if causal_mask == "BottomRight" else 0
        distance = torch.arange(keys)[None] - torch.arange(queries)[:, None] - offset
        allowed = torch.ones(queries, keys, dtype=torch.bool)
        if causal_mask or window_size:
            allowed &= distance <= 0
        if window_size:
            allowed &= distance > -window_size
        mask = torch.zeros(queries, keys, dtype=q.dtype).masked_fill(~allowed, -torch.inf)
        heads = q.shape[2]
        k, v = (t.repeat_interleave(heads // t.shape[2], 2).movedim(1, 2) for t in (k, v))
        mask = mask if bias is None else bias + mask
        y = nn.scaled_dot_product_attention(q.movedim(1, 2), k, v, mask, scale=scale)
        return y.movedim(1, 2)

    return {
        "relax.nn.attention": attention,
        "relax.nn.attention_bias": attention,
    }

"""What the ops of registry/index.py are in torch."""


def functions(torch):
    """Return torch's function for each op that it has."""

    def at(x, index, axis):
        """Return index, from the front, in an axis of x."""
        return torch.where(index < 0, index + x.shape[axis], index).long()

    def take(x, index, axis=None, mode="fast"):
        axis = 0 if axis is None else axis % x.ndim
        extent = x.shape[axis]
        if mode == "wrap":
            index = index % extent
        elif mode == "clip":
            index = index.clip(0, extent - 1)
        flat = torch.index_select(x, axis, at(x, index, axis).reshape(-1))
        return flat.reshape(x.shape[:axis] + index.shape + x.shape[axis + 1 :])

    def gather_nd(x, index, batch_dims=0):
        batch = [
            torch.arange(x.shape[d]).reshape([-1] + [1] * (index.ndim - 2 - d))
            for d in range(batch_dims)
        ]
        return x[(*batch, *(index[..., k] for k in range(index.shape[-1])))]

    def scatter_elements(x, index, updates, axis=0, reduction="update"):
        names = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax", "mean": "mean"}
        index = at(x, index, axis)
        if reduction == "update":
            return None  # of repeated indices, torch's derivative is not that of what it computes
        return x.scatter_reduce(axis, index, updates, names[reduction], include_self=True)

    def scatter_nd(x, index, updates, reduction="update"):
        if reduction != "add":
            return None
        index = tuple(at(x, index[..., k], k) for k in range(index.shape[-1]))
        return x.index_put(index, updates, accumulate=True)

    def index_put(x, indices, values, accumulate=False):
        if not accumulate:
            return None  # which of several values is put is open in torch
        return x.index_put(tuple(i.long() for i in indices), values, accumulate=True)

    def topk(x, k=1, axis=-1, ret_type="both", largest=True, dtype="int32"):
        return torch.topk(x, k if k >= 1 else x.shape[axis], axis, largest)[0]

    def reverse_sequence(x, lengths, seq_axis=1, batch_axis=0):
        moved = x.movedim((batch_axis, seq_axis), (0, 1))
        rows = [
            torch.cat([row[:n].flip(0), row[n:]])
            for row, n in zip(moved, lengths.tolist(), strict=True)
        ]
        return torch.stack(rows).movedim((0, 1), (batch_axis, seq_axis))

    return {
        "relax.gather_elements": lambda x, index, axis=0: torch.gather(x, axis, at(x, index, axis)),
        "relax.gather_nd": gather_nd,
        "relax.index_put": index_put,
        "relax.index_tensor": lambda x, indices: x[tuple(i.long() for i in indices)],
        "relax.reverse_sequence": reverse_sequence,
        "relax.scatter_elements": scatter_elements,
        "relax.scatter_nd": scatter_nd,
        "relax.sort": lambda x, axis=-1, descending=False: torch.sort(x, axis, descending)[0],
        "relax.take": take,
        "relax.topk": topk,
    }

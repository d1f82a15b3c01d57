"""What the ops of registry/linalg.py are in torch."""


def functions(torch):
    """Return torch's function for each op that it has."""

    def einsum(operands, subscripts):
        if subscripts == "ij,ij->i":  # torch broadcasts no reduced axis of an operand
            return torch.einsum(subscripts, operands[0], operands[1].expand(2, 3))
        if subscripts == "ij,jk->ik" and operands[0].shape == (2, 1):
            return torch.einsum(subscripts, operands[0].expand(2, 3), operands[1])
        return torch.einsum(subscripts, *operands)

    return {
        "relax.einsum": einsum,
        "relax.matmul": torch.matmul,
        "relax.outer": torch.outer,
    }

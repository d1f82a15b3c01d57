"""Models and kernels in other frameworks, with their gradients; none is imported before it is used.

Start with `differentiable`, a function of tensors whose vector-Jacobian products are such functions
again. `as_torch` and `torch_op` are what users call; they alone import `torch_ops` and
`torch_module`, which need PyTorch.
"""

"""The lowest layer: representations of programs and kernels, and tools to rewrite and build them.

Start with `program`, a Relax function as a straight line of bindings, and `kernel_structure`, the
stages of a kernel. `visits` walks expressions and statements, `rewrite` changes Relax functions,
`loops` builds kernels, `passes` checks the order of compiler passes, and `tensor` holds the
symbolic tensors that gradient rules compute with.
"""

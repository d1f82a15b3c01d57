"""The ground floor: programs, kernels, and what walks, rewrites and builds them.

Start with `program`, a Relax function as a straight line, and `kernel_structure`, the stages of a
kernel. `rewrite` and `visits` change them, `loops` builds kernels, `passes` orders what does so,
and `tensor` is what rules compute with.
"""

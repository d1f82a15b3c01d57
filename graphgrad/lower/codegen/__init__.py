"""From scheduled kernels to machine code: compiled in parallel, and cached between processes.

Start with `parallel`; `early` builds kernels while others are lowered, `cache` keeps programs.
"""

"""From scheduled kernels to machine code: in parallel, and kept between processes.

Start with `parallel`; `early` builds kernels while others are lowered, `cache` keeps programs.
"""

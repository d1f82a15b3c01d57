"""From scheduled kernels to machine code: in parallel, and kept between processes."""

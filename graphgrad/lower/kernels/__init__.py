"""What kernels are made of, for fusion and for the schedules of processors and GPUs alike.

Start with `contraction` and `epilogue`, which read off stages what they compute.
"""

"""What kernels are made of, for fusion and for the schedules of processors and GPUs alike."""

"""From Relax to kernels: target, pipeline, schedules, donation."""

"""The ground floor: programs, kernels, and what walks, rewrites and builds them."""

"""Rules of resampling: resize, grid_sample, affine_grid."""

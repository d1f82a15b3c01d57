"""Resize, Upsample, GridSample and AffineGrid."""

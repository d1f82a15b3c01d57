"""Rules of cumulative sums and products."""

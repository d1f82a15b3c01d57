"""Reports for people: coverage, progress, loss curves, tables.

Start with `coverage`, or with `training` for the output of a training run.
"""

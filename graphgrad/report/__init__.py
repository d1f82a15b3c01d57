"""What people look at: coverage, progress, curves, tables.

Start with `coverage`, or with `training` for what a run tells.
"""

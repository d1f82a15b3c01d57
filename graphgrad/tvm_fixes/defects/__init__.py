"""One module a defect of TVM: the smallest program that shows it, and what is to be said of it.

The program comes first: it imports nothing of graphgrad, runs alone, and has a function ``shows``
that is true while the defect is there. The module ends with its ``DEFECT``.
"""

"""Index maps inverted: from the element that is read to the points of the loops that read it.

Start with `index_system`, the result; `linear_system` reads indices as linear equations, `lattice`
solves these over the integers.
"""

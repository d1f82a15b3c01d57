"""The forms in which a contribution is computed: contractions, residue classes, gathers, scatters.

Start with `assemble`, which puts the contributions to a tensor together, and with `derive`, which
makes a stage of one, in the form that costs least (`cost`).
"""

"""The forms in which a contribution is computed: contractions, phases, gathers, scatters."""

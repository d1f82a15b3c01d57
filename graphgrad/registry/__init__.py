"""Hand-written gradient rules, one file per op family."""

"""Layout: which axis is the innermost one, chosen on a function before it is differentiated."""

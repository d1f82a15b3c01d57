"""Where time and memory of a step go."""

"""Index maps inverted: from the element that is read to the points of the loops that read it."""

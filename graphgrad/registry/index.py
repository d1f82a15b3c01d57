"""Rules of ops that read or write elements by index, and of sorting."""

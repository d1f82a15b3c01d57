"""Who shares memory with whom, and what may therefore be overwritten."""

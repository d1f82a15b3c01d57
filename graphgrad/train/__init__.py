"""Loss, optimiser, training step and its state."""

"""Loss, optimizer, training step and its state."""

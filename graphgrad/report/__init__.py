"""What people look at: curves, pictures, tables."""

"""Relax ops of our own, where high-level identity must survive lowering."""

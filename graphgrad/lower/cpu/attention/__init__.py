"""Attention and its gradient in blocks, without a matrix of scores in memory."""

"""Kernels to measure: one family a file, each with its symbolic FLOP and bytes and a check of its results."""

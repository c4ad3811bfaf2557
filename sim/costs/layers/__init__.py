"""Symbolic operations of the model families, a file a family."""

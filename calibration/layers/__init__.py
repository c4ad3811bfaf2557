"""Layers written here: real torch modules on kernels of their own."""

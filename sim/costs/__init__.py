"""Symbolic costs: algebra, kernels, collectives, layers, memory, stages; profiles that give the symbols numbers."""

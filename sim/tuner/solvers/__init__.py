"""Solvers of published planners: which layers to which workers."""

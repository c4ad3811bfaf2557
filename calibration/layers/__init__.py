"""Layers of torch networks that do the usual work in another way: less memory, or another kernel."""

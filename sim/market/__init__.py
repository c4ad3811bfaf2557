"""Renting devices whose prices change: where, when, and whether to move."""

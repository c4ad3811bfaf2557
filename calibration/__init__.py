"""Measurement and fitting: turns samples into the profile folders that `sim` reads."""

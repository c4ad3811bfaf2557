"""Sliders over the analytic path, for notebooks."""

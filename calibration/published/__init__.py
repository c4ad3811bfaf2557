"""Profiles and run-level parameters from published measurements."""

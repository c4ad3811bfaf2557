"""Controllers of theta."""

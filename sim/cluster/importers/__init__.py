"""Jobs of real clusters from what their schedulers have logged."""

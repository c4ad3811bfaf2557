"""Real input pipelines: differential phases, caches and coordinated loaders for torch, measured."""

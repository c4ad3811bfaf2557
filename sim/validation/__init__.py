"""A table of measured runs against predictions: errors, order, regret, coverage, out-of-memory verdicts."""

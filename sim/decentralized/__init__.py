"""Training over partitions of the data that are far apart and unlike: traffic, time, accuracy (arXiv 1910.00189)."""

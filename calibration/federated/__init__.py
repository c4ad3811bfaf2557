"""Real decentralised training on skewed partitions of the data (arXiv 1910.00189)."""

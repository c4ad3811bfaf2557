"""Jobs that share a cluster of different devices (Gavel, arXiv 2008.09213)."""

"""A benchmark of training (TBD, arXiv 1803.06905): eight networks of six domains, measured and predicted alike."""

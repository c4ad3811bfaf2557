"""Scheduling policies by name (arXiv 2008.09213), one a file."""

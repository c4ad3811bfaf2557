"""A benchmark of training (TBD, arXiv 1803.06905): eight networks of six domains, measured and predicted alike."""

import os

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else torch's profiler says on stderr that it begins and ends

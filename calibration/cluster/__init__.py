"""Real training jobs that take turns on the slots of this machine, as a policy divides them."""

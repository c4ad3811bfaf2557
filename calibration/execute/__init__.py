"""Real training steps of a small network, compared with predictions that were made before."""

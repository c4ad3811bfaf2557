"""Tests of real decentralised training."""

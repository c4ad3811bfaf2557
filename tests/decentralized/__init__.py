"""Tests of decentralised training."""

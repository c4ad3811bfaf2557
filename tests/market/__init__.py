"""Tests of renting devices."""

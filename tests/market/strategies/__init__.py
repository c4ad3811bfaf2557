"""Tests of strategies of renting."""

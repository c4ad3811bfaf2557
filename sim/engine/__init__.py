"""Engines that run a schedule, and the training step put together from costs, schedule and engine."""

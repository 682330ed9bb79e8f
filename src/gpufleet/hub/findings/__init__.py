"""Findings about the fleet: facts from the hub's data, evaluation of the rules at intervals, and durable state."""

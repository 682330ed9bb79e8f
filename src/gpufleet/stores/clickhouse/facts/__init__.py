"""Inputs of the rules about the fleet in bulk, and the history of findings."""

"""Simulated DCGM host engine: `engine.py` speaks the protocol, `state.py` holds the content."""

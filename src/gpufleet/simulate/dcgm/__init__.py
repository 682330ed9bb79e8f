"""A DCGM host engine that is none: `engine.py` speaks the protocol, `state.py` is what it says."""

"""What agent and relay share in bringing bodies to a hub: posting, patience, pace, and what is refused for good."""

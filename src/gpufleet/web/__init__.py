"""HTTP edges of agent and hub."""

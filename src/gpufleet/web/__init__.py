"""HTTP servers of agent, hub and relay, and their client."""

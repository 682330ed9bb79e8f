"""HTTP servers of agent, hub and relay."""

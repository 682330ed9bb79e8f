"""The disk queue that agent, relay and hub share."""

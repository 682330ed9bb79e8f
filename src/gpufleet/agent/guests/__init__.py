"""Virtual machines that the agent reads from inside: discovery, connection, polling and health of each."""

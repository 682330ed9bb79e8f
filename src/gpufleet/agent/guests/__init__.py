"""Virtual machines that the agent reads from inside: found, dialled, asked, each on its own."""

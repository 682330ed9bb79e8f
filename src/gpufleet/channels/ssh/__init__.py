"""SSH to a guest: a persistent connection, a pinned host key and fixed commands."""

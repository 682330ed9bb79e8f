"""SSH to a guest: one kept connection, a pinned host key, fixed commands."""

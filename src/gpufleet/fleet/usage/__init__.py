"""GPU hours: held, used, idle, unknown, and their cost."""

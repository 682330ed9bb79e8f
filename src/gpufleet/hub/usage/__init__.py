"""What allocations held, what that was used for, and what it came to."""

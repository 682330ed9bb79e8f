"""SQL statements of users: views, allowed functions, checks and execution within limits."""

"""Live updates of pages: marks of what has changed."""

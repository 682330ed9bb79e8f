"""The receive stage: authenticate, deduplicate, log, acknowledge."""

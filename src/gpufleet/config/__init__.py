"""Configuration records of the daemons, and the strict loader."""

"""Data from other systems: remote write, OTLP, federation, scraped targets."""

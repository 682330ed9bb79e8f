"""Imports from other systems: remote write, OTLP, federation, scraped targets."""

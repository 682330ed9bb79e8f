"""Stores: where samples are kept."""

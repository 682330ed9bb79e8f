"""Samples, newest samples and time series."""

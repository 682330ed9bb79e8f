"""Devices of an allocation, and the sources that may answer for them."""

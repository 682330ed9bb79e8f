"""Holder sources: evidence which pod, job or VM has which device."""

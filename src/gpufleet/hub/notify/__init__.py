"""Delivery of findings to webhooks, Alertmanagers and the store, from numbered transitions in the registry."""

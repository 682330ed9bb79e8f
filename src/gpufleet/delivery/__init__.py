"""Delivery of request bodies to a hub or another receiver: posting, retries, pacing, queues."""

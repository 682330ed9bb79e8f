"""A made-up fleet: many clusters of nodes, each value a function of seed, device and instant, sent as agents send."""

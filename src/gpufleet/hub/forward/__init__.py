"""What the hub takes in, passed on to a time-series database that the site has: Prometheus remote write."""

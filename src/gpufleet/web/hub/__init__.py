"""HTTP API of hub and relay; see `docs/reference/http-api.md`."""

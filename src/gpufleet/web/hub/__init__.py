"""The hub's HTTP edge: batches in, answers out. `docs/reference/http-api.md` documents it."""

"""The native batch: MessagePack, columnar, optionally zstd. `docs/reference/batch.md` documents the bytes."""

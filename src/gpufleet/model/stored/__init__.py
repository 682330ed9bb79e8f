"""Records in the store and the ledger."""

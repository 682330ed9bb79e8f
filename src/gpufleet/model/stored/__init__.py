"""Records that the store and the ledger keep."""

"""Which devices belong to an allocation, and who may answer for them."""

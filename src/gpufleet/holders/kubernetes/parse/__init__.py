"""JSON of Kubernetes objects to records: decode only the needed fields, bound every text. Pure."""

"""Client of the Kubernetes API: local copies of its objects, owner chains, and leader election."""

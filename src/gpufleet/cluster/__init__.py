"""The cluster collector: reads the Kubernetes API of a cluster and reports its objects to a hub."""

"""API servers for the tests of this folder, as for those of the client."""

from tests.holders.kubernetes.conftest import cluster

__all__ = ["cluster"]

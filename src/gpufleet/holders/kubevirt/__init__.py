"""Virtual machines of KubeVirt on this node: which of them may be read, and which launcher pods belong to them."""

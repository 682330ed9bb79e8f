"""Stand-ins for what gpufleet reads and is sent, with faults on demand. Nothing here shares code with a reader."""

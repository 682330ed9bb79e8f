"""Simulators of the systems that gpufleet reads and of its senders, with injectable faults. No code of the readers."""

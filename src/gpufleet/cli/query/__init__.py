"""Commands of `gpufleet query`: one module per subject, with its commands and their tables."""

"""From nvidia-smi's texts to the catalogue: one table for CSV, XML and `-q`; only here its units are known."""

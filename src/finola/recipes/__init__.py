"""One YAML file per experiment: `paper/` at the paper's size, `cpu/` its twins for small machines, and our own."""

"""Training recipes: the paper's experiments from tables in Python; bases and our own models as YAML files."""

"""One Lightning module per training task."""

"""One module per training task: its model, losses and validation metrics."""

"""Metrics of trained models: detection, probing, latent space and curvature."""

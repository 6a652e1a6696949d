"""Peers that FINOLA is measured against, each a small function or class of one shape: images → latents → images."""

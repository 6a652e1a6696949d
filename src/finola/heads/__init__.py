"""Heads on an encoder: classifiers, DETR, Mask R-CNN (appendix B) and MoCo."""

from __future__ import annotations

from finola.heads.classifier import Classifier, LinearHead, TransformerHead, build_head, ranks

__all__ = ["Classifier", "LinearHead", "TransformerHead", "build_head", "ranks"]

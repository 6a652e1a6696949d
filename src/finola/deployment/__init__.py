"""Deployment: models as ONNX or torch.export graphs, encoder and decoder separately, and a runtime for photos."""

from finola.deployment.exporter import export, output_files
from finola.deployment.runtime import ExportedModel, load_exported
from finola.deployment.verification import verify

__all__ = ["ExportedModel", "export", "load_exported", "output_files", "verify"]

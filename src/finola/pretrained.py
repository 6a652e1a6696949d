"""Models as folders: huggingface_hub's mixin, with files that are whole or not there."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Self

from huggingface_hub import PyTorchModelHubMixin

from finola.files import share


class Pretrained(PyTorchModelHubMixin, library_name="finola"):
    """`save_pretrained`, `from_pretrained` and `push_to_hub`, safetensors only."""

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Self:
        """As the mixin's, without its chatter on standard output, from which others read JSON."""
        with redirect_stdout(io.StringIO()):
            model: Self = super().from_pretrained(*args, **kwargs)
        return model

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> str | None:
        """Write config.json and model.safetensors, each beside its target and then renamed."""
        target = Path(save_directory)
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            result = super().save_pretrained(beside, **kwargs)
            target.mkdir(exist_ok=True)
            for file in sorted(beside.iterdir()):
                share(file)
                os.replace(file, target / file.name)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        return result

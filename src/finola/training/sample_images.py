"""Sample reconstructions of every validation, saved as PNG in the run directory and logged to TensorBoard."""

from __future__ import annotations

from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

from finola.image_io import save_photo


class Pictures(Callback):
    """Save the first validation photos above their reconstructions, computed with the validated weights."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder / "samples", count

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        samples = getattr(pl_module, "samples", None)
        if not trainer.is_global_zero or samples is None or not self.count:
            return
        images = samples[: self.count]
        sheet = contact_sheet(images, pl_module.draw(images))  # type: ignore[operator]
        self.folder.mkdir(parents=True, exist_ok=True)
        save_photo(sheet, self.folder / f"step-{trainer.global_step:07d}.png")
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_image("samples", sheet, trainer.global_step)
            elif hasattr(logger, "log_image"):
                logger.log_image("samples", [sheet], step=trainer.global_step)


def contact_sheet(originals: Tensor, reconstructions: Tensor, gap: int = 2) -> Tensor:
    """Arrange a row of originals above a row of reconstructions on white: (3, H, W) in [0, 1].

    >>> contact_sheet(torch.rand(4, 3, 16, 16), torch.rand(4, 3, 16, 16)).shape
    torch.Size([3, 34, 70])
    """
    count, _, height, width = originals.shape
    sheet = torch.ones(3, 2 * height + gap, count * (width + gap) - gap)
    for row, images in enumerate((originals, reconstructions)):
        for column, image in enumerate(images.detach().float().cpu().clamp(0, 1)):
            top, left = row * (height + gap), column * (width + gap)
            sheet[:, top : top + height, left : left + width] = image
    return sheet

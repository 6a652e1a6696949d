"""Recipes: the configuration of a training run, one dataclass per task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from finola.config import ModelConfig
from finola.errors import InputError
from finola.recipes import sections
from finola.recipes.sections import check_limits, seconds, setting


@dataclass
class Recipe:
    """Settings that all tasks have; each task has a subclass.

    >>> ReconstructionRecipe(model=sections.AutoencoderSection("waves/64x1@8:32")).data.batch_size
    128
    """

    module: ClassVar[str] = ""  # module:class of the task
    example: ClassVar[str] = "mf-w720"  # a model name, for error messages

    model: sections.ModelSection = field(default_factory=sections.ModelSection)
    data: sections.DataSection = field(default_factory=sections.DataSection)
    optimiser: sections.OptimiserSection = field(default_factory=sections.OptimiserSection)
    schedule: sections.ScheduleSection = field(default_factory=sections.ScheduleSection)
    trainer: sections.TrainerSection = field(default_factory=sections.TrainerSection)
    checkpoint: sections.CheckpointSection = field(default_factory=sections.CheckpointSection)
    logging: sections.LoggingSection = field(default_factory=sections.LoggingSection)
    task: str = ""
    seed: int = setting(0, low=0)
    about: str = ""  # one line for `finola train --list`
    name: str = ""  # set by load_recipe

    @property
    def image_size(self) -> tuple[int, int]:
        """Size (height, width) of the model's input."""
        return ModelConfig.parse(self.model.name).image_size

    @property
    def images_per_step(self) -> int:
        """Number of images of one optimisation step, over all processes."""
        return self.data.batch_size

    @property
    def batch_multiple(self) -> int:
        """Number that divides the part of `data.batch_size` in one forward pass of one process."""
        return 1

    def check(self) -> None:
        """Raise InputError for invalid values and for combinations in which a setting has no effect."""
        check_limits(self)
        schedule, trainer = self.schedule, self.trainer
        if not self.model.name and not (self.example == Recipe.example and self.model.weights):
            raise InputError(f"The recipe does not set model.name. Add one, such as model.name={self.example}.")
        if trainer.devices != "auto" and not (trainer.devices.isdigit() and int(trainer.devices) > 0):
            raise InputError(
                f"trainer.devices is {trainer.devices!r}, but must be auto or the number of processes per node."
            )
        if trainer.ema_decay is not None and not 0 < trainer.ema_decay < 1:
            raise InputError(f"trainer.ema_decay is {trainer.ema_decay}, but must be between 0 and 1, such as 0.999.")
        if trainer.max_time is not None:
            seconds(trainer.max_time)
        elif schedule.clock == "time":
            raise InputError("schedule.clock=time needs a time limit: set one, such as trainer.max_time=30m.")
        if schedule.clock == "time" and schedule.milestones:
            raise _no_effect("schedule.clock=time", "schedule.milestones")
        for name, group in self.optimiser.groups.items():
            if group.muon and self.optimiser.kind == "sgd":
                raise _no_effect(f"optimiser.groups.{name}.muon", "optimiser.kind=sgd")


def _no_effect(setting: str, other: str) -> InputError:
    return InputError(f"{setting} has no effect together with {other}. Remove one of them.")


@dataclass
class CropRecipe(Recipe):
    """Settings of the tasks on photos cropped to a common size."""

    data: sections.CropSection = field(default_factory=sections.CropSection)

    def check(self) -> None:
        super().check()
        if self.data.crop == "centre" and self.data.flip:
            raise _no_effect("data.flip", "data.crop=centre")


@dataclass
class ReconstructionRecipe(CropRecipe):
    """Task `reconstruction` (§4)."""

    module: ClassVar[str] = "finola.training.tasks.reconstruction:Reconstruction"
    example: ClassVar[str] = "waves+conv/256x1@16:64"

    model: sections.AutoencoderSection = field(default_factory=sections.AutoencoderSection)
    data: sections.SizedCropSection = field(default_factory=sections.SizedCropSection)
    logging: sections.ImageLoggingSection = field(default_factory=sections.ImageLoggingSection)
    task: str = "reconstruction"
    loss: sections.LossSection = field(default_factory=sections.LossSection)
    paper_psnr: float | None = None  # PSNR in dB reported by the paper for this row


@dataclass
class NetsRecipe(CropRecipe):
    """Task `nets`: the networks on pixels around the exact waves of a model."""

    module: ClassVar[str] = "finola.training.tasks.nets:Nets"
    example: ClassVar[str] = "waves+nets/512x1@8:32+elastic16"

    data: sections.SizedCropSection = field(default_factory=sections.SizedCropSection)
    logging: sections.ImageLoggingSection = field(default_factory=sections.ImageLoggingSection)
    task: str = "nets"
    loss: sections.NetsLossSection = field(default_factory=sections.NetsLossSection)
    codebook: sections.CodebookSection = field(default_factory=sections.CodebookSection)

    def check(self) -> None:
        super().check()
        config = ModelConfig.parse(self.model.name)
        if not config.is_exact:
            raise InputError(f"The task nets trains models such as {self.example}, not {self.model.name}.")
        for section, default in (("loss", sections.NetsLossSection()), ("codebook", sections.CodebookSection())):
            if not config.elastic and getattr(self, section) != default:
                raise InputError(f"{section} applies to elastic models only, and {self.model.name} is not. Remove it.")


@dataclass
class MaskedRecipe(CropRecipe):
    """Task `masked`: pre-training of masked FINOLA (appendix B)."""

    module: ClassVar[str] = "finola.training.tasks.masked:Masked"
    example: ClassVar[str] = "mf-w720/256x1@8:128+tran1"

    model: sections.RecurrentSection = field(default_factory=sections.RecurrentSection)
    logging: sections.ImageLoggingSection = field(default_factory=sections.ImageLoggingSection)
    task: str = "masked"
    mask: sections.MaskSection = field(default_factory=sections.MaskSection)


@dataclass
class EncoderRecipe(CropRecipe):
    """Settings of the tasks `classify` and `moco`, on an encoder with images of `data.size`."""

    data: sections.SizedCropSection = field(default_factory=sections.SizedCropSection)

    @property
    def image_size(self) -> tuple[int, int]:
        return self.data.size or 0, self.data.size or 0

    def check(self) -> None:
        super().check()
        if not self.data.size:
            raise InputError(
                f"The task {self.task} needs an image size for its encoder: add one, such as data.size=224."
            )


@dataclass
class ClassifyRecipe(EncoderRecipe):
    """Task `classify`: probing or fine-tuning."""

    module: ClassVar[str] = "finola.training.tasks.classification:Classify"

    task: str = "classify"
    data: sections.ClassifySection = field(default_factory=sections.ClassifySection)
    head: sections.ClassifierHeadSection = field(default_factory=sections.ClassifierHeadSection)
    classes: list[str] = field(default_factory=list)  # set from the data when a run starts

    def check(self) -> None:
        super().check()
        if self.head.kind == "lin" and self.head.dropout:
            raise _no_effect("head.dropout", "head.kind=lin")


@dataclass
class MocoRecipe(EncoderRecipe):
    """Task `moco`: the contrastive baseline."""

    module: ClassVar[str] = "finola.training.tasks.moco:Contrast"

    task: str = "moco"
    moco: sections.MocoSection = field(default_factory=sections.MocoSection)

    @property
    def images_per_step(self) -> int:
        """Two views of each photo; `data.batch_size` counts photos, as in MoCo-v2."""
        return self.data.batch_size * self.data.crops_per_image

    @property
    def batch_multiple(self) -> int:
        return self.moco.norm_batch_size

    def check(self) -> None:
        super().check()
        if self.trainer.strategy == "fsdp":  # which discards updates of the momentum encoder between steps
            raise InputError("trainer.strategy is fsdp, but the task moco needs ddp or auto.")
        if self.trainer.sync_batchnorm is not False:
            raise InputError(
                f"trainer.sync_batchnorm is {self.trainer.sync_batchnorm}, but the task moco needs separate statistics "
                "for queries and keys. Set trainer.sync_batchnorm=false."
            )
        if self.data.crops_per_image != 2:
            raise InputError(
                f"The task moco needs two views: set data.crops_per_image=2, not {self.data.crops_per_image}."
            )


@dataclass
class ObjectRecipe(Recipe):
    """Settings of the tasks `detect` and `segment`, on photos of variable size."""

    logging: sections.ImageLoggingSection = field(default_factory=sections.ImageLoggingSection)
    head: sections.HeadSection = field(default_factory=sections.HeadSection)
    objects: sections.ObjectsSection = field(default_factory=sections.ObjectsSection)
    classes: list[str] = field(default_factory=list)  # set from the data when a run starts

    @property
    def image_size(self) -> tuple[int, int]:
        return self.objects.short_side[1], self.objects.max_long_side

    def check(self) -> None:
        super().check()
        if self.head.frozen and self.model.weights is None:
            raise InputError(
                "head.frozen is true, but model.weights is not set, so the frozen encoder would be random. "
                "Set model.weights to a trained model, or head.frozen=false."
            )


@dataclass
class DetectRecipe(ObjectRecipe):
    """Task `detect`: object detection."""

    module: ClassVar[str] = "finola.training.tasks.detection:Detect"

    task: str = "detect"
    head: sections.DetectorHeadSection = field(default_factory=sections.DetectorHeadSection)


@dataclass
class SegmentRecipe(ObjectRecipe):
    """Task `segment`: instance segmentation."""

    module: ClassVar[str] = "finola.training.tasks.detection:Segment"

    task: str = "segment"


_RECIPES = (ReconstructionRecipe, NetsRecipe, MaskedRecipe, ClassifyRecipe, MocoRecipe, DetectRecipe, SegmentRecipe)
TASKS: dict[str, type[Recipe]] = {recipe.task: recipe for recipe in _RECIPES}
"""Recipe class of each task."""

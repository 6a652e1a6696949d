"""Recipes: the configuration of a training run, one dataclass per task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from finola.config import HEADS, INITIALISATIONS, ModelConfig, nearest
from finola.errors import InputError, UnknownNameError
from finola.training.sections import (
    AutoencoderSection,
    CheckpointSection,
    ClassifierHeadSection,
    ClassifySection,
    CodebookSection,
    CompiledTrainerSection,
    CropSection,
    DataSection,
    DetectorHeadSection,
    HeadSection,
    ImageLoggingSection,
    LoggingSection,
    LossSection,
    MaskSection,
    MocoSection,
    ModelSection,
    NetsLossSection,
    ObjectsSection,
    OptimiserSection,
    ReconstructionLoggingSection,
    ScheduleSection,
    SizedCropSection,
    TrainerSection,
    at_least,
    one_of,
    seconds,
)


@dataclass
class Recipe:
    """Settings that all tasks have; each task has a subclass.

    >>> ReconstructionRecipe(model=AutoencoderSection("waves/64x1@8:32")).data.batch_size
    128
    """

    module: ClassVar[str] = ""  # module:class of the Lightning module
    example: ClassVar[str] = "mf-w720"  # a model name, for error messages

    model: ModelSection = field(default_factory=ModelSection)
    data: DataSection = field(default_factory=DataSection)
    optimiser: OptimiserSection = field(default_factory=OptimiserSection)
    schedule: ScheduleSection = field(default_factory=ScheduleSection)
    trainer: TrainerSection = field(default_factory=TrainerSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    logging: LoggingSection = field(default_factory=LoggingSection)
    task: str = ""
    seed: int = 0
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
        optimiser, schedule, trainer = self.optimiser, self.schedule, self.trainer
        if not self.model.name and not (self.example == Recipe.example and self.model.weights):
            raise InputError(f"The recipe does not set model.name. Add one, such as model.name={self.example}.")
        one_of("schedule.clock", schedule.clock, "steps", "time")
        one_of("optimiser.kind", optimiser.kind, "adamw", "sgd")
        one_of("trainer.strategy", trainer.strategy, "auto", "ddp", "fsdp")
        at_least("seed", self.seed, 0)
        at_least("data.batch_size", self.data.batch_size, 1)
        at_least("schedule.epochs", schedule.epochs, 1)
        at_least("trainer.accumulate_grad_batches", trainer.accumulate_grad_batches, 1)
        at_least("trainer.check_val_every_n_epoch", trainer.check_val_every_n_epoch, 1)
        at_least("trainer.num_nodes", trainer.num_nodes, 1)
        if trainer.max_steps is not None:
            at_least("trainer.max_steps", trainer.max_steps, 1)
        at_least("logging.every_steps", self.logging.every_steps, 1)
        if trainer.devices != "auto" and not (trainer.devices.isdigit() and int(trainer.devices) > 0):
            raise InputError(
                f"trainer.devices is {trainer.devices!r}, but must be auto or the number of processes per node."
            )
        if not trainer.heartbeat_timeout > 0:
            raise InputError(f"trainer.heartbeat_timeout is {trainer.heartbeat_timeout} seconds, but must be positive.")
        if trainer.ema_decay is not None and not 0 < trainer.ema_decay < 1:
            raise InputError(f"trainer.ema_decay is {trainer.ema_decay}, but must be between 0 and 1, such as 0.999.")
        if trainer.max_time is not None:
            seconds(trainer.max_time)
        elif schedule.clock == "time":
            raise InputError(
                "schedule.clock=time needs a time limit: set trainer.max_time, such as trainer.max_time=30m."
            )
        if schedule.milestones and schedule.clock == "time":
            raise InputError("schedule.clock=time has no effect together with schedule.milestones. Remove one of them.")
        for name, group in optimiser.groups.items():
            if group.muon and optimiser.kind == "sgd":
                raise InputError(
                    f"optimiser.groups.{name}.muon has no effect with optimiser.kind=sgd. Remove one of them."
                )


@dataclass
class CropRecipe(Recipe):
    """Settings of the tasks on photos cropped to a common size."""

    data: CropSection = field(default_factory=CropSection)

    def check(self) -> None:
        super().check()
        one_of("data.crop", self.data.crop, "resized", "random", "centre")
        at_least("data.crops_per_image", self.data.crops_per_image, 1)
        if self.data.crop == "centre" and self.data.flip:
            raise InputError("data.flip has no effect with data.crop=centre. Remove one of them.")
        if len(self.data.scale) != 2:
            raise InputError(
                f"data.scale is {self.data.scale}, but must be the smallest and largest relative crop area, "
                "such as [0.08, 1.0]."
            )


@dataclass
class ReconstructionRecipe(CropRecipe):
    """Task `reconstruction` (§4)."""

    module: ClassVar[str] = "finola.training.tasks.reconstruction:Reconstruction"
    example: ClassVar[str] = "waves+conv/256x1@16:64"

    model: AutoencoderSection = field(default_factory=AutoencoderSection)
    data: SizedCropSection = field(default_factory=SizedCropSection)
    trainer: CompiledTrainerSection = field(default_factory=CompiledTrainerSection)
    logging: ReconstructionLoggingSection = field(default_factory=ReconstructionLoggingSection)
    task: str = "reconstruction"
    loss: LossSection = field(default_factory=LossSection)
    paper_psnr: float | None = None  # PSNR in dB reported by the paper for this row

    def check(self) -> None:
        super().check()
        loss = self.loss
        one_of("loss.kind", loss.kind, "l2", "psnr")
        if self.model.init is not None:
            one_of("model.init", self.model.init, *INITIALISATIONS)
        if not 0 <= loss.quantised_fraction <= 1:
            raise InputError(f"loss.quantised_fraction is {loss.quantised_fraction}, but must be between 0 and 1.")
        if self.trainer.compile and loss.quantised_fraction:
            raise InputError("trainer.compile cannot be combined with loss.quantised_fraction. Remove one of them.")
        steps = loss.quantisation_steps
        if len(steps) != 2 or not 0 <= steps[0] <= steps[1] <= 255:
            raise InputError(f"loss.quantisation_steps is {steps}, but must be the finest and coarsest step in 0…255.")


@dataclass
class NetsRecipe(CropRecipe):
    """Task `nets`: the networks on pixels around the exact waves of a model."""

    module: ClassVar[str] = "finola.training.tasks.nets:Nets"
    example: ClassVar[str] = "waves+nets/512x1@8:32+elastic16"

    data: SizedCropSection = field(default_factory=SizedCropSection)
    logging: ImageLoggingSection = field(default_factory=ImageLoggingSection)
    task: str = "nets"
    loss: NetsLossSection = field(default_factory=NetsLossSection)
    codebook: CodebookSection = field(default_factory=CodebookSection)

    def check(self) -> None:
        super().check()
        config = ModelConfig.parse(self.model.name)
        if not config.is_exact:
            raise InputError(f"The task nets trains models such as {self.example}, not {self.model.name}.")
        for section, default in (("loss", NetsLossSection()), ("codebook", CodebookSection())):
            if not config.elastic and getattr(self, section) != default:
                raise InputError(f"{section} applies to elastic models only, and {self.model.name} is not. Remove it.")
        if not 0 <= self.loss.quantised_fraction <= 1:
            raise InputError(f"loss.quantised_fraction is {self.loss.quantised_fraction}, but must be between 0 and 1.")
        for key in ("lagrangian", "quantiser_step"):
            values = getattr(self.loss, key)
            if len(values) != 2 or not 0 < values[0] <= values[1]:
                raise InputError(f"loss.{key} is {values}, but must be the smallest and the largest value.")
        at_least("codebook.photos", self.codebook.photos, 1)
        at_least("codebook.steps", self.codebook.steps, 1)


@dataclass
class MaskedRecipe(CropRecipe):
    """Task `masked`: pre-training of masked FINOLA (appendix B)."""

    module: ClassVar[str] = "finola.training.tasks.masked:Masked"
    example: ClassVar[str] = "mf-w720/256x1@8:128+tran1"

    logging: ImageLoggingSection = field(default_factory=ImageLoggingSection)
    task: str = "masked"
    mask: MaskSection = field(default_factory=MaskSection)

    def check(self) -> None:
        super().check()
        one_of("mask.variant", self.mask.variant, "e", "b")


@dataclass
class EncoderRecipe(CropRecipe):
    """Settings of the tasks `classify` and `moco`, on an encoder with images of `data.size`."""

    data: SizedCropSection = field(default_factory=SizedCropSection)

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
    data: ClassifySection = field(default_factory=ClassifySection)
    head: ClassifierHeadSection = field(default_factory=ClassifierHeadSection)
    classes: list[str] = field(default_factory=list)  # set from the data when a run starts

    def check(self) -> None:
        super().check()
        one_of("head.kind", self.head.kind, *HEADS["classify"])
        if self.head.kind == "lin" and self.head.dropout:
            raise InputError("head.dropout has no effect with head.kind=lin. Remove one of them.")


@dataclass
class MocoRecipe(EncoderRecipe):
    """Task `moco`: the contrastive baseline."""

    module: ClassVar[str] = "finola.training.tasks.moco:Contrast"

    task: str = "moco"
    moco: MocoSection = field(default_factory=MocoSection)

    @property
    def images_per_step(self) -> int:
        """Two views of each photo; `data.batch_size` counts photos, as in MoCo-v2."""
        return self.data.batch_size * self.data.crops_per_image

    @property
    def batch_multiple(self) -> int:
        return self.moco.norm_batch_size

    def check(self) -> None:
        super().check()
        at_least("moco.norm_batch_size", self.moco.norm_batch_size, 1)
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

    logging: ImageLoggingSection = field(default_factory=ImageLoggingSection)
    head: HeadSection = field(default_factory=HeadSection)
    objects: ObjectsSection = field(default_factory=ObjectsSection)
    classes: list[str] = field(default_factory=list)  # set from the data when a run starts

    @property
    def image_size(self) -> tuple[int, int]:
        return self.objects.short_side[1], self.objects.max_long_side

    def check(self) -> None:
        super().check()
        one_of("head.kind", self.head.kind, *HEADS[self.task])
        if self.head.frozen and self.model.weights is None:
            raise InputError(
                "head.frozen is true, but model.weights is not set, so the frozen encoder would be random. "
                "Set model.weights to a trained model, or head.frozen=false."
            )
        sides = self.objects.short_side
        if len(sides) != 2 or not 0 < sides[0] <= sides[1]:
            raise InputError(
                f"objects.short_side is {sides}, but must be the smallest and largest short side in pixels, "
                "such as [480, 800]."
            )


@dataclass
class DetectRecipe(ObjectRecipe):
    """Task `detect`: object detection."""

    module: ClassVar[str] = "finola.training.tasks.detection:Detect"

    task: str = "detect"
    head: DetectorHeadSection = field(default_factory=DetectorHeadSection)


@dataclass
class SegmentRecipe(ObjectRecipe):
    """Task `segment`: instance segmentation."""

    module: ClassVar[str] = "finola.training.tasks.detection:Segment"

    task: str = "segment"


_RECIPES = (ReconstructionRecipe, NetsRecipe, MaskedRecipe, ClassifyRecipe, MocoRecipe, DetectRecipe, SegmentRecipe)
TASKS: dict[str, type[Recipe]] = {recipe.task: recipe for recipe in _RECIPES}
"""Recipe class of each task."""


def recipe_class(task: str) -> type[Recipe]:
    """Recipe class of a task. Raises UnknownNameError for an unknown one."""
    if task not in TASKS:
        raise UnknownNameError(f"Unknown task {task!r}: {nearest(task, TASKS)}")
    return TASKS[task]

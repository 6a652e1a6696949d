"""Configuration of a training run: typed sections whose defaults follow the paper where it gives them.

The training settings of the paper are Table 13 (table:appendix:FINOLA).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from finola.config import HEADS
from finola.errors import InputError

CROPS = ("resized", "random", "centre")
CLOCKS = ("steps", "time")
ON_ENCODERS = ("classify", "moco")
"""Tasks whose `model.name` is the name of an encoder."""
ON_OBJECTS = ("detect", "segment")
"""Tasks on an encoder with images of variable size."""


@dataclass
class ModelSection:
    """Name of the model or encoder, and initialisation of its weights."""

    name: str = ""  # an encoder such as mf-w720 for classify and moco; default: the encoder of `weights`
    init: str | None = None  # waves or random; a waves… model is always initialised with plane waves
    weights: str | None = None  # folder or name of a trained model to initialise matching parts from
    spectrum: str | None = None  # JSON file of `finola spectrum` that ranks the waves of the initialisation
    frozen: list[str] = field(default_factory=list)  # patterns of parameter names to freeze, such as encoder.*
    encoder_size: int | None = None  # short side of the encoder's input; skips the refinement
    checkpointing: bool = False  # gradient checkpointing: less memory, more time


@dataclass
class DataSection:
    """Training and validation photos, cropping and augmentation."""

    path: str | None = None  # folder, parquet, shards, COCO, smoke; None: FINOLA_DATA
    val_path: str | None = None  # None: the val split of `path`
    crop: str = "resized"  # resized (RandomResizedCrop), random (unscaled), centre
    size: int | None = None  # side of training images; None: that of the model
    scale: list[float] = field(default_factory=lambda: [0.08, 1.0])  # range of the relative crop area of resized crops
    flip: bool = False
    augment: str | None = None  # RandAugment in timm's notation, such as rand-m9-mstd0.5, or moco
    crops_per_image: int = 1
    batch_size: int = 128  # images per optimisation step, over all processes
    workers: int | None = None  # loader processes; None: chosen from the number of cores
    limit: int | None = None  # maximum number of training photos, evenly spread
    val_size: int | None = None  # centre crop of validation photos, tiled if larger than the model; None: as the model
    val_batch_size: int | None = None  # per process; None: as in training
    val_limit: int | None = None


@dataclass
class LossSection:
    """L2 or PSNR loss on pixels, and optional additional terms."""

    kind: str = "l2"  # l2, or psnr: the mean over images of −PSNR, the evaluation metric
    fit_q: float = 0.0  # weight of ‖q − q_waves‖², the distance to the wave encoder of `init: waves`
    rounded: float = 0.0  # fraction of the batch whose q is quantised by the calibration stored with `model.weights`
    steps: list[int] = field(default_factory=lambda: [80, 168])  # finest and coarsest quantisation step


@dataclass
class MaskSection:
    """Settings of the task `masked`: variant and position of the visible quadrant."""

    variant: str = "b"  # e: pooled to one q; b: block-wise
    one_jump: bool = False  # variant b: predict half a map in one step instead of step by step
    places: int | None = None  # distinct positions per forward pass; None: one per image. Fewer are faster in variant e


@dataclass
class HeadSection:
    """Head for classes or objects on the encoder's feature map, and its regularisation."""

    kind: str = "lin"  # classify: lin, tran-1, tran-4; detect: mf-dec-522, mf-dec-211; segment: mask-rcnn
    frozen: bool = True  # true: probing with a frozen encoder; false: fine-tuning
    dropout: float = 0.0
    smoothing: float = 0.0  # label smoothing
    mixup: float = 0.0  # α of the Beta distribution; if cutmix is on as well, one of the two is drawn per batch
    cutmix: float = 0.0
    erase: float = 0.0  # probability of random erasing


@dataclass
class ObjectsSection:
    """Settings of the tasks `detect` and `segment`: photo sizes and batch norms of the encoder."""

    short: list[int] = field(default_factory=lambda: [480, 800])  # range of the short side; validation: maximum
    long: int = 1333  # maximum long side
    step: int = 32  # increment between short sides
    crop: bool = True  # crop every other training photo
    encoder_norms: bool = False  # update batch-norm statistics of a trained encoder


@dataclass
class MocoSection:
    """Settings of the task `moco`; defaults are those of MoCo-v2."""

    queue: int = 65536  # number of negative keys
    momentum: float = 0.999
    temperature: float = 0.2
    size: int = 128  # dimension of the projection


@dataclass
class GroupSection:
    """Parameter group with its own learning rate, selected by name."""

    match: list[str] = field(default_factory=list)  # patterns such as *refinement*
    rate: float | None = None  # absolute peak learning rate
    multiplier: float = 1.0  # of the common learning rate, if `rate` is not given
    weight_decay: float | None = None  # None: that of the optimiser section
    muon: bool = False  # optimise matrices with Muon instead of AdamW; typical `rate`: 0.02


@dataclass
class OptimiserSection:
    """AdamW or SGD with peak learning rate base_rate · batch_size / 256."""

    base_rate: float = 1.5e-4
    rate: float | None = None  # absolute peak learning rate, instead of base_rate
    weight_decay: float = 0.1
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    eps: float = 1e-8
    kind: str = "adamw"  # adamw or sgd
    momentum: float = 0.9  # SGD only
    layer_decay: float | None = None  # layer-wise learning-rate decay of the encoder
    decay_norms_and_biases: bool = True
    groups: dict[str, GroupSection] = field(default_factory=dict)


@dataclass
class ScheduleSection:
    """Learning-rate schedule: linear warm-up, then cosine or step decay, updated per step."""

    epochs: int = 100
    warmup_epochs: float = 10.0
    final: float = 0.0  # final learning rate as a fraction of the peak
    drops: list[float] = field(default_factory=list)  # epochs at which the learning rate is divided by 10 (step decay)
    clock: str = "steps"  # steps: cosine over `epochs`; time: cosine over `trainer.max_time`


@dataclass
class TrainerSection:
    """Options of Lightning's Trainer, and EMA, compilation and validation."""

    accelerator: str = "auto"
    devices: str = "auto"  # processes per node, or auto
    nodes: int = 1
    strategy: str = "auto"
    precision: str = "32-true"
    accumulate: int = 1  # forward passes per optimisation step
    clip: float | None = None  # maximum gradient norm
    ema: float | None = None  # decay of the exponential moving average of weights, such as 0.999
    compile: bool = False
    sync_batchnorm: bool | None = None  # None: on if several GPUs are used; needs CUDA
    deterministic: bool = False
    max_steps: int | None = None
    max_time: str | None = None  # such as 45s, 30m, 1h30m, 2d
    validate_every: int = 1  # epochs
    validate_first: bool = False  # validate before the first step as well


@dataclass
class CheckpointSection:
    """Interval of `last.ckpt`, in addition to the end of every epoch; 0 disables it."""

    every_minutes: float = 10.0
    every_steps: int = 0


@dataclass
class LoggingSection:
    """Logging during training."""

    every_steps: int = 50
    samples: int = 8  # number of sample reconstructions per validation
    wandb: bool = True  # only if it is installed
    health: bool = True  # log path inconsistency, range of σ and cond(B)


@dataclass
class Recipe:
    """Configuration of a training run.

    >>> Recipe(model=ModelSection("waves/64x1@8:32")).data.batch_size
    128
    """

    model: ModelSection = field(default_factory=ModelSection)
    data: DataSection = field(default_factory=DataSection)
    loss: LossSection = field(default_factory=LossSection)
    mask: MaskSection = field(default_factory=MaskSection)
    head: HeadSection = field(default_factory=HeadSection)
    objects: ObjectsSection = field(default_factory=ObjectsSection)
    moco: MocoSection = field(default_factory=MocoSection)
    optimiser: OptimiserSection = field(default_factory=OptimiserSection)
    schedule: ScheduleSection = field(default_factory=ScheduleSection)
    trainer: TrainerSection = field(default_factory=TrainerSection)
    checkpoint: CheckpointSection = field(default_factory=CheckpointSection)
    logging: LoggingSection = field(default_factory=LoggingSection)
    task: str = "reconstruction"
    seed: int = 0
    classes: list[str] = field(default_factory=list)  # set from the data when a run starts
    about: str = ""  # one line for `finola train --list`
    paper_psnr: float | None = None  # PSNR in dB reported by the paper for this row
    name: str = ""  # set by load_recipe


def check(recipe: Recipe) -> Recipe:
    """Validate the settings and return the recipe. Raises InputError for invalid values."""
    data, schedule, trainer = recipe.data, recipe.schedule, recipe.trainer
    on_encoder = recipe.task in (*ON_ENCODERS, *ON_OBJECTS)
    if not recipe.model.name and not (on_encoder and recipe.model.weights):
        example = "mf-w720" if on_encoder else "waves+conv/256x1@16:64"
        raise InputError(f"The recipe does not set model.name. Add one, such as model.name={example}.")
    if recipe.task in ON_ENCODERS and not data.size:
        raise InputError(f"The task {recipe.task} needs an image size for its encoder: add one, such as data.size=224.")
    if len(recipe.objects.short) != 2 or not 0 < recipe.objects.short[0] <= recipe.objects.short[1]:
        raise InputError(
            f"objects.short is {recipe.objects.short}, but must be the smallest and largest short side in pixels, "
            "such as [480, 800]."
        )
    loss = recipe.loss
    if not 0 <= loss.rounded <= 1 or (loss.rounded and loss.fit_q):
        raise InputError(
            f"loss.rounded is {loss.rounded}, but must be between 0 and 1 and cannot be combined with loss.fit_q "
            f"({loss.fit_q})."
        )
    if trainer.compile and (loss.rounded or loss.fit_q):
        raise InputError(
            "trainer.compile cannot be combined with loss.rounded or loss.fit_q, which use parts of the model. "
            "Remove one of them."
        )
    side = recipe.model.encoder_size
    if side is not None and (side < 1 or loss.rounded or loss.fit_q or data.size or data.val_size):
        raise InputError(
            f"model.encoder_size is {side}, but must be a positive number of pixels, and cannot be combined with "
            "loss.rounded, loss.fit_q, data.size or data.val_size."
        )
    if len(loss.steps) != 2 or not 0 <= loss.steps[0] <= loss.steps[1] <= 255:
        raise InputError(f"loss.steps is {loss.steps}, but must be the finest and coarsest step in 0…255.")
    if recipe.model.init not in (None, "random", "waves"):
        raise InputError(f"model.init is {recipe.model.init!r}, but must be waves, random, or left out.")
    for key, value, known in (
        ("data.crop", data.crop, CROPS),
        ("schedule.clock", schedule.clock, CLOCKS),
        ("mask.variant", recipe.mask.variant, ("e", "b")),
        ("loss.kind", recipe.loss.kind, ("l2", "psnr")),
        ("head.kind", recipe.head.kind, HEADS.get(recipe.task, (recipe.head.kind,))),
        ("optimiser.kind", recipe.optimiser.kind, ("adamw", "sgd")),
    ):
        if value not in known:
            raise InputError(f"{key} is {value!r}, but must be one of {', '.join(known)}.")
    if recipe.seed < 0:
        raise InputError(f"seed is {recipe.seed}, but must be at least 0.")
    for key, number in (
        ("data.batch_size", data.batch_size),
        ("data.crops_per_image", data.crops_per_image),
        ("schedule.epochs", schedule.epochs),
        ("trainer.accumulate", trainer.accumulate),
        ("trainer.validate_every", trainer.validate_every),
        ("trainer.nodes", trainer.nodes),
        ("logging.every_steps", recipe.logging.every_steps),
    ):
        if number < 1:
            raise InputError(f"{key} is {number}, but must be at least 1.")
    if trainer.devices != "auto" and not (trainer.devices.isdigit() and int(trainer.devices) > 0):
        raise InputError(
            f"trainer.devices is {trainer.devices!r}, but must be auto or the number of processes per node."
        )
    if trainer.ema is not None and not 0 < trainer.ema < 1:
        raise InputError(f"trainer.ema is {trainer.ema}, but must be a decay between 0 and 1, such as 0.999.")
    if schedule.clock == "time" and trainer.max_time is None:
        raise InputError("schedule.clock=time needs a time limit: set trainer.max_time, such as trainer.max_time=30m.")
    if trainer.max_time is not None:
        seconds(trainer.max_time)
    for where, keys in _unused_settings(recipe).items():
        for key, is_set in keys.items():
            if is_set:
                raise InputError(f"{key} has no effect {where}. Remove it.")
    return recipe


def _unused_settings(recipe: Recipe) -> dict[str, dict[str, bool]]:
    """Settings that have no effect in this recipe, by reason, and whether each is set."""
    data, head, loss, model = recipe.data, recipe.head, recipe.loss, recipe.model
    found: dict[str, dict[str, bool]] = {}
    if recipe.task in ("masked", *ON_ENCODERS, *ON_OBJECTS):
        found[f"in the task {recipe.task}"] = {
            "loss.kind": loss.kind != "l2",
            "loss.fit_q": loss.fit_q != 0,
            "loss.rounded": loss.rounded != 0,
            "model.init=waves": model.init == "waves",
            "model.spectrum": model.spectrum is not None,
            "model.encoder_size": model.encoder_size is not None,
            "trainer.compile": recipe.trainer.compile,
        }
    if recipe.task in ON_OBJECTS:
        found["in detection and segmentation"] = {
            "data.augment": data.augment is not None,
            "data.size": data.size is not None,
            "data.val_size": data.val_size is not None,
            "data.crops_per_image": data.crops_per_image != 1,
            **{f"head.{key}": getattr(head, key) != 0 for key in ("smoothing", "mixup", "cutmix", "erase")},
            "head.dropout": recipe.task == "segment" and head.dropout != 0,
        }
    if recipe.task == "classify" and head.kind == "lin":
        found["with head.kind=lin"] = {"head.dropout": head.dropout != 0}
    if recipe.optimiser.kind == "sgd":
        groups = recipe.optimiser.groups.items()
        found["with optimiser.kind=sgd"] = {f"optimiser.groups.{name}.muon": group.muon for name, group in groups}
    if recipe.schedule.drops:
        found["together with schedule.drops"] = {"schedule.clock=time": recipe.schedule.clock == "time"}
    if data.crop == "centre" and recipe.task not in ON_OBJECTS:
        found["with data.crop=centre"] = {"data.flip": data.flip}
    return found


def seconds(duration: str) -> float:
    """Convert a duration such as `45s`, `30m`, `1h30m` or `2d` to seconds.

    >>> seconds("1h30m")
    5400.0
    """
    parts = re.fullmatch(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", duration.strip())
    if not parts or not any(parts.groups()):
        raise InputError(f"trainer.max_time is {duration!r}, but must be a duration such as 45s, 30m, 1h30m or 2d.")
    return float(sum(int(part or 0) * unit for part, unit in zip(parts.groups(), (86400, 3600, 60, 1), strict=True)))

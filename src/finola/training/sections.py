"""Sections of recipes and checks of their values; defaults are those of Table 13 (table:appendix:FINOLA) if given."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from finola.errors import InputError


@dataclass
class ModelSection:
    """Name of the model or encoder, and the weights that it is initialised from."""

    name: str = ""  # an encoder such as mf-w720 for tasks on an encoder; default: the encoder of `weights`
    weights: str | None = None  # folder or name of a trained model to initialise matching parts from
    frozen: list[str] = field(default_factory=list)  # patterns of parameter names to freeze, such as encoder.*
    grad_checkpointing: bool = False  # less memory, more time


@dataclass
class AutoencoderSection(ModelSection):
    """Model of the task `reconstruction`."""

    init: str | None = None  # waves, wave-matrices (only A and B) or random; a waves… model always has plane waves
    spectrum: str | None = None  # JSON file of `finola spectrum` that ranks the waves of the initialisation
    transition_scale: float = 1.0  # factor of the initial random A and B, or of the other matrices of the transition


@dataclass
class DataSection:
    """Training and validation photos."""

    path: str | None = None  # folder, parquet, shards, COCO, smoke; None: FINOLA_DATA
    val_path: str | None = None  # None: the val split of `path`
    flip: bool = False
    batch_size: int = 128  # images per optimisation step, over all processes; photos in the task moco
    num_workers: int | None = None  # loader processes; None: chosen from the number of cores
    limit: int | None = None  # maximum number of training photos, evenly spread
    val_batch_size: int | None = None  # per process; None: as in training
    val_limit: int | None = None


@dataclass
class CropSection(DataSection):
    """Photos that are cropped to a common size."""

    crop: str = "resized"  # resized (RandomResizedCrop), random (unscaled), centre
    scale: list[float] = field(default_factory=lambda: [0.08, 1.0])  # range of the relative crop area of resized crops
    augment: str | None = None  # RandAugment in timm's notation, such as rand-m9-mstd0.5, or moco
    crops_per_image: int = 1


@dataclass
class SizedCropSection(CropSection):
    """Crops whose size can be chosen."""

    size: int | None = None  # side of training images; None: that of the model
    val_size: int | None = None  # centre crop of validation photos, tiled if larger than the model; None: as the model


@dataclass
class ClassifySection(SizedCropSection):
    """Photos of the task `classify`."""

    crop_pct: float = 1.0  # centre crop relative to the resized photo, in validation; 0.875: resize 256, crop 224


@dataclass
class LossSection:
    """Loss of the task `reconstruction`: L2 or PSNR on pixels, and optional additional terms."""

    kind: str = "l2"  # l2, or psnr: the mean over images of −PSNR, the evaluation metric
    quantised_fraction: float = 0.0  # of the batch: its q is quantised by the calibration stored with `model.weights`
    quantisation_steps: list[int] = field(default_factory=lambda: [80, 168])  # finest and coarsest step


@dataclass
class NetsLossSection:
    """Random rates of the task `nets`, drawn for each image uniformly in the logarithm."""

    lagrangian: list[float] = field(default_factory=lambda: [0.01, 0.6])  # λ of elastic lengths: error per latent
    quantised_fraction: float = 0.5  # of the images: quantised as in a file instead of shortened
    quantiser_step: list[float] = field(default_factory=lambda: [0.08, 0.6])  # of pixel coordinates


@dataclass
class CodebookSection:
    """Fit of the codebook before the first step."""

    photos: int = 2048  # evenly spread training photos
    steps: int = 6


@dataclass
class MaskSection:
    """Masking of the task `masked`: variant and position of the visible quadrant."""

    variant: str = "b"  # e: pooled to one q; b: block-wise
    one_jump: bool = False  # variant b: predict half a map in one step instead of step by step
    places: int | None = None  # distinct positions per forward pass; None: one per image. Fewer are faster in variant e


@dataclass
class HeadSection:
    """Head on the encoder's feature map."""

    kind: str = "mask-rcnn"
    frozen: bool = True  # true: probing with a frozen encoder; false: fine-tuning


@dataclass
class ClassifierHeadSection(HeadSection):
    """Head of the task `classify`, and its regularisation."""

    kind: str = "lin"  # lin, tran-1, tran-4
    dropout: float = 0.0
    label_smoothing: float = 0.0
    mixup: float = 0.0  # α of the Beta distribution; if cutmix is on as well, one of the two is drawn per batch
    cutmix: float = 0.0
    random_erasing: float = 0.0  # probability


@dataclass
class MocoSection:
    """Settings of the task `moco`; defaults are those of MoCo-v2."""

    queue_size: int = 65536  # number of negative keys
    momentum: float = 0.999
    temperature: float = 0.2
    projection_dim: int = 128
    norm_batch_size: int = 32  # photos with common batch-norm statistics; as published, 256 photos on 8 GPUs


@dataclass
class ObjectsSection:
    """Photo sizes and batch norms of the tasks `detect` and `segment`."""

    short_side: list[int] = field(default_factory=lambda: [480, 800])  # range in training; validation: maximum
    max_long_side: int = 1333
    short_side_step: int = 32  # increment between short sides
    random_crop: bool = True  # crop every other training photo
    update_encoder_norms: bool = False  # update batch-norm statistics of a trained encoder


@dataclass
class DetectorHeadSection(HeadSection):
    """Head of the task `detect`."""

    kind: str = "mf-dec-522"  # or mf-dec-211
    dropout: float = 0.0


@dataclass
class GroupSection:
    """Parameter group with its own learning rate, selected by name."""

    match: list[str] = field(default_factory=list)  # patterns such as *refinement*
    lr: float | None = None  # absolute peak learning rate
    lr_multiplier: float = 1.0  # of the common learning rate, if `lr` is not given
    weight_decay: float | None = None  # None: that of the optimiser section
    muon: bool = False  # optimise matrices with Muon instead of AdamW; typical `lr`: 0.02


@dataclass
class OptimiserSection:
    """AdamW or SGD with peak learning rate base_lr · batch_size / 256."""

    base_lr: float = 1.5e-4
    lr: float | None = None  # absolute peak learning rate, instead of base_lr
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
    final_lr_fraction: float = 0.0  # of the peak learning rate, at the end of the cosine
    milestones: list[float] = field(default_factory=list)  # epochs at which the learning rate is divided by 10
    clock: str = "steps"  # steps: cosine over `epochs`; time: cosine over `trainer.max_time`


@dataclass
class TrainerSection:
    """Options of Lightning's Trainer, EMA and validation."""

    accelerator: str = "auto"
    devices: str = "auto"  # processes per node, or auto
    num_nodes: int = 1
    strategy: str = "auto"  # ddp, fsdp, or auto: ddp if there are several processes
    heartbeat_timeout: float = 20.0  # seconds after which a silent process is lost and the others end
    precision: str = "32-true"
    accumulate_grad_batches: int = 1  # forward passes per optimisation step
    gradient_clip_val: float | None = None  # maximum gradient norm
    ema_decay: float | None = None  # of the exponential moving average of weights, such as 0.999
    sync_batchnorm: bool | None = None  # None: on if several GPUs are used; needs CUDA
    deterministic: bool = False
    max_steps: int | None = None
    max_time: str | None = None  # such as 45s, 30m, 1h30m, 2d
    check_val_every_n_epoch: int = 1
    validate_first: bool = False  # validate before the first step as well


@dataclass
class CompiledTrainerSection(TrainerSection):
    """Trainer options of the task `reconstruction`."""

    compile: bool = False


@dataclass
class CheckpointSection:
    """Interval of `last.ckpt`, in addition to the end of every epoch; 0 disables it."""

    every_minutes: float = 10.0
    every_steps: int = 0


@dataclass
class LoggingSection:
    """Logging during training."""

    every_steps: int = 50
    wandb: bool = False  # Weights & Biases, from the extra wandb


@dataclass
class ImageLoggingSection(LoggingSection):
    """Logging with sample images."""

    samples: int = 8  # number of sample images per validation


@dataclass
class ReconstructionLoggingSection(ImageLoggingSection):
    """Logging of the task `reconstruction`."""

    health: bool = True  # log path inconsistency, range of σ and cond(B)


def one_of(key: str, value: str, *known: str) -> None:
    if value not in known:
        raise InputError(f"{key} is {value!r}, but must be one of {', '.join(known)}.")


def at_least(key: str, value: int, minimum: int) -> None:
    if value < minimum:
        raise InputError(f"{key} is {value}, but must be at least {minimum}.")


def seconds(duration: str) -> float:
    """Convert a duration such as `45s`, `30m`, `1h30m` or `2d` to seconds.

    >>> seconds("1h30m")
    5400.0
    """
    parts = re.fullmatch(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", duration.strip())
    if not parts or not any(parts.groups()):
        raise InputError(f"trainer.max_time is {duration!r}, but must be a duration such as 45s, 30m, 1h30m or 2d.")
    total = sum(int(part or 0) * unit for part, unit in zip(parts.groups(), (86400, 3600, 60, 1), strict=True))
    if not total:
        raise InputError(f"trainer.max_time is {duration!r}, but must be longer than 0 seconds, such as 30m.")
    return float(total)

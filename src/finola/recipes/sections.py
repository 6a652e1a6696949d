"""Sections of recipes and limits of their values; defaults are those of Table 13 (table:appendix:FINOLA) if given."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from finola.config import HEADS, INITIALISATIONS
from finola.errors import InputError, shorten


def setting(default: Any, *choices: str, low: float = -math.inf, high: float = math.inf) -> Any:
    """Field with allowed values: `choices`, or low … high. The default of a list is a smallest and a largest value."""
    limits = {"choices": choices, "low": low, "high": high}
    if isinstance(default, tuple):
        return field(default_factory=lambda: list(default), metadata=limits)
    return field(default=default, metadata=limits)


def check_limits(section: Any, prefix: str = "") -> None:
    """Raise InputError for a value of a section, or of a section in it, that is not allowed.

    >>> check_limits(ScheduleSection(epochs=0), "schedule.")
    Traceback (most recent call last):
    finola.errors.InputError: schedule.epochs is 0, but must be at least 1.
    """
    for entry in fields(section):
        key, value, limits = prefix + entry.name, getattr(section, entry.name), entry.metadata
        for name, inner in value.items() if isinstance(value, dict) else [("", value)] if is_dataclass(value) else []:
            check_limits(inner, f"{key}.{name}." if name else f"{key}.")
        if not limits or value is None:
            continue
        low, high, choices = limits["low"], limits["high"], limits["choices"]
        allowed = f"at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
        if choices:
            valid, allowed = value in choices, f"one of {', '.join(choices)}"
        elif isinstance(value, list):
            valid = len(value) == 2 and low <= value[0] <= value[1] <= high
            allowed = f"the smallest and the largest value, {allowed}"
        else:
            valid = low <= value <= high
        if not valid:
            raise InputError(f"{key} is {value!r}, but must be {allowed}.")


@dataclass
class ModelSection:
    """Name of the model or encoder, and the weights that it is initialised from."""

    name: str = ""  # an encoder such as mf-w720 for tasks on an encoder; default: the encoder of `weights`
    weights: str | None = None  # folder or name of a trained model to initialise matching parts from
    frozen: list[str] = field(default_factory=list)  # patterns of parameter names to freeze, such as encoder.*
    grad_checkpointing: bool = False  # less memory, more time


@dataclass
class RecurrentSection(ModelSection):
    """Model of the task `masked`."""

    transition_scale: float = setting(1.0, low=1e-9)  # factor of the initial A and B, or of other matrices


@dataclass
class AutoencoderSection(RecurrentSection):
    """Model of the task `reconstruction`."""

    init: str | None = setting(None, *INITIALISATIONS)  # a waves… model always has plane waves
    spectrum: str | None = None  # JSON file of `finola spectrum` that ranks the waves of the initialisation
    compile: bool = False


@dataclass
class DataSection:
    """Training and validation photos."""

    path: str | None = None  # folder, parquet, shards, COCO, smoke; None: FINOLA_DATA
    val_path: str | None = None  # None: the val split of `path`
    flip: bool = False
    batch_size: int = setting(128, low=1)  # images per optimisation step, over all processes; photos in the task moco
    num_workers: int | None = setting(None, low=0)  # loader processes; None: chosen from the number of cores
    limit: int | None = setting(None, low=1)  # maximum number of training photos, evenly spread
    val_batch_size: int | None = setting(None, low=1)  # per process; None: as in training
    val_limit: int | None = setting(None, low=1)


@dataclass
class CropSection(DataSection):
    """Photos that are cropped to a common size."""

    crop: str = setting("resized", "resized", "random", "centre")  # RandomResizedCrop, unscaled, not random
    scale: list[float] = setting((0.08, 1.0), low=0, high=1)  # relative area of resized crops
    augment: str | None = None  # RandAugment in timm's notation, such as rand-m9-mstd0.5, or moco
    crops_per_image: int = setting(1, low=1)


@dataclass
class SizedCropSection(CropSection):
    """Crops whose size can be chosen."""

    size: int | None = setting(None, low=1)  # side of training images; None: that of the model
    val_size: int | None = setting(None, low=1)  # of centre crops in validation, which may be larger than the model's


@dataclass
class ClassifySection(SizedCropSection):
    """Photos of the task `classify`."""

    crop_pct: float = 1.0  # centre crop relative to the resized photo, in validation; 0.875: resize 256, crop 224


@dataclass
class LossSection:
    """Loss of the task `reconstruction`: L2 or PSNR on pixels, and a penalty on the feature map."""

    kind: str = setting("l2", "l2", "psnr")  # psnr: the mean over images of −PSNR, the evaluation metric
    order_difference: float = setting(0.0, low=0)  # weight of ‖z_h − z_v‖² / ‖z‖², which is 0 if both orders agree


@dataclass
class NetsLossSection:
    """Random rates of the task `nets`, drawn for each image uniformly in the logarithm."""

    lagrangian: list[float] = setting((0.01, 0.6), low=1e-9)  # λ of elastic lengths: error per latent
    quantised_fraction: float = setting(0.5, low=0, high=1)  # of the images: quantised instead of shortened
    quantiser_step: list[float] = setting((0.08, 0.6), low=1e-9)  # of pixel coordinates


@dataclass
class CodebookSection:
    """Fit of the codebook before the first step."""

    photos: int = setting(2048, low=1)  # evenly spread training photos
    steps: int = setting(6, low=1)


@dataclass
class MaskSection:
    """Masking of the task `masked`: variant and position of the visible quadrant."""

    variant: str = setting("b", "e", "b")  # e: pooled to one q; b: block-wise
    one_jump: bool = False  # variant b: predict half a map in one step instead of step by step


@dataclass
class HeadSection:
    """Head on the encoder's feature map."""

    kind: str = setting("mask-rcnn", *HEADS["segment"])
    frozen: bool = True  # true: probing with a frozen encoder; false: fine-tuning


@dataclass
class ClassifierHeadSection(HeadSection):
    """Head of the task `classify`, and its regularisation."""

    kind: str = setting("lin", *HEADS["classify"])
    dropout: float = setting(0.0, low=0, high=1)
    label_smoothing: float = setting(0.0, low=0, high=1)
    mixup: float = setting(0.0, low=0)  # α of the Beta distribution; with cutmix, one of the two is drawn per batch
    cutmix: float = setting(0.0, low=0)
    random_erasing: float = setting(0.0, low=0, high=1)  # probability


@dataclass
class MocoSection:
    """Settings of the task `moco`; defaults are those of MoCo-v2."""

    queue_size: int = setting(65536, low=1)  # number of negative keys
    momentum: float = setting(0.999, low=0, high=1)
    temperature: float = 0.2
    projection_dim: int = setting(128, low=1)
    norm_batch_size: int = setting(32, low=1)  # photos with common statistics; as published, 256 photos on 8 GPUs


@dataclass
class ObjectsSection:
    """Photo sizes and batch norms of the tasks `detect` and `segment`."""

    short_side: list[int] = setting((480, 800), low=1)  # range in training; validation: maximum
    max_long_side: int = setting(1333, low=1)
    short_side_step: int = setting(32, low=1)  # increment between short sides
    random_crop: bool = True  # crop every other training photo
    update_encoder_norms: bool = False  # update batch-norm statistics of a trained encoder


@dataclass
class DetectorHeadSection(HeadSection):
    """Head of the task `detect`."""

    kind: str = setting("mf-dec-522", *HEADS["detect"])
    dropout: float = setting(0.0, low=0, high=1)


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
    betas: list[float] = setting((0.9, 0.999), low=0, high=1)
    eps: float = 1e-8
    kind: str = setting("adamw", "adamw", "sgd")
    momentum: float = 0.9  # SGD only
    layer_decay: float | None = None  # layer-wise learning-rate decay of the encoder
    decay_norms_and_biases: bool = True
    groups: dict[str, GroupSection] = field(default_factory=dict)


@dataclass
class ScheduleSection:
    """Learning-rate schedule: linear warm-up, then cosine or step decay, updated per step."""

    epochs: int = setting(100, low=1)
    warmup_epochs: float = setting(10.0, low=0)
    final_lr_fraction: float = 0.0  # of the peak learning rate, at the end of the cosine
    milestones: list[float] = field(default_factory=list)  # epochs at which the learning rate is divided by 10
    clock: str = setting("steps", "steps", "time")  # steps: cosine over `epochs`; time: over `trainer.max_time`


PRECISIONS = ("auto", "32-true", "64-true", "bf16-true", "16-true", "bf16-mixed", "16-mixed")


@dataclass
class TrainerSection:
    """Devices and precision of `lightning.fabric`, limits of the run, EMA and validation."""

    accelerator: str = "auto"
    devices: str = "auto"  # processes per node, or auto
    num_nodes: int = setting(1, low=1)
    strategy: str = setting("auto", "auto", "ddp", "fsdp")  # auto: ddp if there are several processes
    precision: str = setting("32-true", *PRECISIONS)  # auto: bf16-mixed on CUDA, 32-true elsewhere
    accumulate_grad_batches: int = setting(1, low=1)  # forward passes per optimisation step
    gradient_clip_val: float | None = None  # maximum gradient norm
    ema_decay: float | None = None  # of the exponential moving average of weights, such as 0.999
    sync_batchnorm: bool | None = None  # None: on if several GPUs are used; needs CUDA
    deterministic: bool = False  # only deterministic algorithms, which may be slower
    max_steps: int | None = setting(None, low=1)
    max_time: str | None = None  # such as 45s, 30m, 1h30m, 2d
    check_val_every_n_epoch: int = setting(1, low=1)
    validate_first: bool = False  # validate before the first step as well


@dataclass
class CheckpointSection:
    """Interval of `last.ckpt`, in addition to the end of every epoch; 0 disables it."""

    every_minutes: float = setting(10.0, low=0)
    every_steps: int = setting(0, low=0)


@dataclass
class LoggingSection:
    """Logging during training."""

    every_steps: int = setting(50, low=1)
    wandb: bool = False  # Weights & Biases, from the extra wandb


@dataclass
class ImageLoggingSection(LoggingSection):
    """Logging with sample images."""

    samples: int = setting(8, low=0)  # number of sample images per validation


def seconds(duration: str) -> float:
    """Convert a duration such as `45s`, `30m`, `1h30m` or `2d` to seconds.

    >>> seconds("1h30m")
    5400.0
    """
    parts = re.fullmatch(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", duration.strip())
    found = parts.groups("0") if parts else ()
    total = sum(int(part) * unit for part, unit in zip(found, (86400, 3600, 60, 1), strict=False))
    if not total:
        raise InputError(
            f"trainer.max_time is {shorten(duration)}, but must be a positive duration such as 45s, 30m, 1h30m or 2d."
        )
    return float(total)

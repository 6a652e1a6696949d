"""What a training run is made of: typed sections with their defaults, the paper's where it gives one (Table 12)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from finola.config import HEADS
from finola.errors import InputError

CROPS = ("resized", "random", "centre")
CLOCKS = ("steps", "time")
ON_ENCODERS = ("classify", "moco")
"""Tasks whose model.name is an encoder's."""
ON_OBJECTS = ("detect", "segment")
"""Those too, but their images have no fixed size."""


@dataclass
class ModelSection:
    """The model by its one-line name, or an encoder by its own, and how their weights begin."""

    name: str = ""  # of the tasks classify and moco: an encoder such as mf-w720; left out, that of `weights`
    init: str | None = None  # waves or random; a waves… model always starts from plane waves
    weights: str | None = None  # a trained model's folder or name: the run begins with what fits of it
    spectrum: str | None = None  # a JSON file of `finola spectrum` that ranks the waves of a wave start
    frozen: list[str] = field(default_factory=list)  # patterns such as encoder.*: these do not train
    encoder_size: int | None = None  # photos' short side for the encoder alone; the refinement is left out
    checkpointing: bool = False  # recompute activations in the backward pass: less memory, more time


@dataclass
class DataSection:
    """Photos, and which part of each becomes a training image."""

    path: str | None = None  # folder, parquet, shards, COCO, smoke; None: FINOLA_DATA
    val_path: str | None = None  # None: the val part of `path`
    crop: str = "resized"  # resized (RandomResizedCrop), random (unscaled), centre
    size: int | None = None  # of training images; None: the model's own
    scale: list[float] = field(default_factory=lambda: [0.08, 1.0])  # share of the photo's area, for resized crops
    flip: bool = False
    augment: str | None = None  # of each crop: RandAug as timm writes it, such as rand-m9-mstd0.5, or moco
    crops_per_image: int = 1
    batch_size: int = 128  # images per optimisation step, over all processes
    workers: int | None = None  # None: chosen from the machine
    limit: int | None = None  # use this many training photos only, evenly spread
    val_size: int | None = None  # centre crop for validation, tiled where larger than the model; None: the model's own
    val_batch_size: int | None = None  # per process; None: that of training
    val_limit: int | None = None


@dataclass
class LossSection:
    """L2 on pixels or its logarithm, and what may be added to it."""

    kind: str = "l2"  # l2; or psnr, the mean of every image's own −PSNR, which is what is measured in the end
    fit_q: float = 0.0  # weight of ‖q − q_waves‖²: fits another encoder to the wave encoder of `init: waves`
    rounded: float = 0.0  # share of every batch whose q is rounded as in a file, by the tables beside `model.weights`
    steps: list[int] = field(default_factory=lambda: [80, 168])  # finest and coarsest step it is rounded with


@dataclass
class MaskSection:
    """Of the task `masked`: which variant, and where its quadrant floats."""

    variant: str = "b"  # e: pooled to one q; b: block-wise
    one_jump: bool = False  # b: half a map in one step, not step by step
    places: int | None = None  # distinct ones per forward pass; None: one per image. Equal ones share products in e


@dataclass
class HeadSection:
    """What reads classes or objects from the encoder's maps, and what keeps it from overfitting."""

    kind: str = "lin"  # classify: lin, tran-1, tran-4; detect: mf-dec-522, mf-dec-211; segment: mask-rcnn
    frozen: bool = True  # the encoder stays as it is (probing); false: it is trained too (fine-tuning)
    dropout: float = 0.0
    smoothing: float = 0.0  # of labels
    mixup: float = 0.0  # the α of its Beta distribution; with cutmix on as well, each batch gets one of the two
    cutmix: float = 0.0
    erase: float = 0.0  # share of images that lose a random box


@dataclass
class ObjectsSection:
    """Of the tasks `detect` and `segment`: how large photos are, and whether the encoder's statistics move."""

    short: list[int] = field(default_factory=lambda: [480, 800])  # least and largest short side; the last to validate
    long: int = 1333  # the most that a long side may have
    step: int = 32  # between short sides
    crop: bool = True  # every other training photo is cropped
    encoder_norms: bool = False  # batch norms of a trained encoder follow the batches


@dataclass
class MocoSection:
    """Of the task `moco`: MoCo-v2's own numbers."""

    queue: int = 65536  # keys to tell apart from
    momentum: float = 0.999
    temperature: float = 0.2
    size: int = 128  # of a projected vector


@dataclass
class GroupSection:
    """Parameters with a rate of their own, chosen by name."""

    match: list[str] = field(default_factory=list)  # patterns such as *refinement*
    rate: float | None = None  # absolute peak rate
    multiplier: float = 1.0  # of the common rate, where `rate` is not given
    weight_decay: float | None = None  # None: the common one
    muon: bool = False  # matrices by Muon instead of AdamW; a `rate` of 0.02 is usual


@dataclass
class OptimiserSection:
    """AdamW or SGD; the common rate is base_rate · batch_size / 256."""

    base_rate: float = 1.5e-4
    rate: float | None = None  # absolute common rate, in place of base_rate
    weight_decay: float = 0.1
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    eps: float = 1e-8
    kind: str = "adamw"  # adamw or sgd
    momentum: float = 0.9  # of sgd
    layer_decay: float | None = None  # each layer of the encoder learns this much slower than the one above it
    decay_norms_and_biases: bool = True
    groups: dict[str, GroupSection] = field(default_factory=dict)


@dataclass
class ScheduleSection:
    """Linear warm-up, then cosine or drops, both per step."""

    epochs: int = 100
    warmup_epochs: float = 10.0
    final: float = 0.0  # share of the peak rate that is left at the end
    drops: list[float] = field(default_factory=list)  # epochs after which the rate is a tenth, in place of the cosine
    clock: str = "steps"  # steps: cosine over `epochs`; time: over `trainer.max_time`, however fast the machine


@dataclass
class TrainerSection:
    """What goes to Lightning's Trainer, and what may be switched on around it."""

    accelerator: str = "auto"
    devices: str = "auto"  # processes per node, or auto
    nodes: int = 1
    strategy: str = "auto"
    precision: str = "32-true"
    accumulate: int = 1  # forward passes per optimisation step
    clip: float | None = None  # largest norm of the gradient
    ema: float | None = None  # decay of the running mean of weights, such as 0.999
    compile: bool = False
    sync_batchnorm: bool | None = None  # None: where several GPUs train together; it needs CUDA
    deterministic: bool = False
    max_steps: int | None = None
    max_time: str | None = None  # such as 45s, 30m, 1h30m, 2d
    validate_every: int = 1  # epochs
    validate_first: bool = False  # also before the first step


@dataclass
class CheckpointSection:
    """When `last.ckpt` is written besides the end of every epoch; 0 switches a rule off."""

    every_minutes: float = 10.0
    every_steps: int = 0


@dataclass
class LoggingSection:
    """What is written down on the way."""

    every_steps: int = 50
    samples: int = 8  # validation photos drawn every time
    wandb: bool = True  # used only where it is installed
    health: bool = True  # path inconsistency, range of σ and cond(B)


@dataclass
class Recipe:
    """A whole training run.

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
    classes: list[str] = field(default_factory=list)  # filled in from the data when a run begins
    about: str = ""  # one line for `finola train --list`
    paper_psnr: float | None = None  # what the paper reports for this row, in dB
    name: str = ""  # filled in by load_recipe


def check(recipe: Recipe) -> Recipe:
    """The recipe, or one sentence on a value that no run can start with."""
    data, schedule, trainer = recipe.data, recipe.schedule, recipe.trainer
    on_encoder = recipe.task in (*ON_ENCODERS, *ON_OBJECTS)
    if not recipe.model.name and not (on_encoder and recipe.model.weights):
        named = "mf-w720" if on_encoder else "waves+conv/256x1@16:64"
        raise InputError(f"the recipe has no model.name; add one such as model.name={named}.")
    if recipe.task in ON_ENCODERS and not data.size:
        raise InputError(f"the task {recipe.task} takes an encoder, which has no size of its own: add data.size=224.")
    if len(recipe.objects.short) != 2 or not 0 < recipe.objects.short[0] <= recipe.objects.short[1]:
        raise InputError(f"objects.short is {recipe.objects.short}; it is the least and the largest short side.")
    loss = recipe.loss
    if not 0 <= loss.rounded <= 1 or (loss.rounded and loss.fit_q):
        raise InputError(f"loss.rounded is {loss.rounded}; it is a share from 0 to 1, and not beside loss.fit_q.")
    if trainer.compile and (loss.rounded or loss.fit_q):
        raise InputError(
            "trainer.compile takes the model as a whole, and loss.rounded and fit_q look inside: drop one."
        )
    side = recipe.model.encoder_size
    if side is not None and (side < 1 or loss.rounded or loss.fit_q or data.size or data.val_size):
        raise InputError(
            f"model.encoder_size is {side}; it is a side in pixels, for images of the model's own size: without "
            "loss.rounded, loss.fit_q, data.size and data.val_size."
        )
    if len(loss.steps) != 2 or not 0 <= loss.steps[0] <= loss.steps[1] <= 255:
        raise InputError(f"loss.steps is {loss.steps}; it is the finest and the coarsest step of 0 to 255.")
    if recipe.model.init not in (None, "random", "waves"):
        raise InputError(f"model.init is {recipe.model.init!r}; it is waves, random, or left out.")
    for key, value, known in (
        ("data.crop", data.crop, CROPS),
        ("schedule.clock", schedule.clock, CLOCKS),
        ("mask.variant", recipe.mask.variant, ("e", "b")),
        ("loss.kind", recipe.loss.kind, ("l2", "psnr")),
        ("head.kind", recipe.head.kind, HEADS.get(recipe.task, (recipe.head.kind,))),
        ("optimiser.kind", recipe.optimiser.kind, ("adamw", "sgd")),
    ):
        if value not in known:
            raise InputError(f"{key} is {value!r}; it is one of {', '.join(known)}.")
    if recipe.seed < 0:
        raise InputError(f"seed is {recipe.seed}; it is 0 or larger.")
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
            raise InputError(f"{key} is {number}; it is at least 1.")
    if trainer.devices != "auto" and not (trainer.devices.isdigit() and int(trainer.devices) > 0):
        raise InputError(f"trainer.devices is {trainer.devices!r}; it is auto or the number of processes per node.")
    if trainer.ema is not None and not 0 < trainer.ema < 1:
        raise InputError(f"trainer.ema is {trainer.ema}; it is a decay between 0 and 1, such as 0.999.")
    if schedule.clock == "time" and trainer.max_time is None:
        raise InputError("schedule.clock=time needs trainer.max_time, such as trainer.max_time=30m.")
    if trainer.max_time is not None:
        seconds(trainer.max_time)
    for where, keys in _without_effect(recipe).items():
        for key, is_set in keys.items():
            if is_set:
                raise InputError(f"{key} has no effect {where}: leave it out.")
    return recipe


def _without_effect(recipe: Recipe) -> dict[str, dict[str, bool]]:
    """Settings that nothing would read here, and whether they are set: better refused than believed in."""
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
        found["on photos with objects"] = {
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
        found["beside schedule.drops"] = {"schedule.clock=time": recipe.schedule.clock == "time"}
    if data.crop == "centre" and recipe.task not in ON_OBJECTS:
        found["with data.crop=centre"] = {"data.flip": data.flip}
    return found


def seconds(duration: str) -> float:
    """How long `45s`, `30m`, `1h30m` or `2d` last.

    >>> seconds("1h30m")
    5400.0
    """
    parts = re.fullmatch(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", duration.strip())
    if not parts or not any(parts.groups()):
        raise InputError(f"trainer.max_time is {duration!r}; write it like 45s, 30m, 1h30m or 2d.")
    return float(sum(int(part or 0) * unit for part, unit in zip(parts.groups(), (86400, 3600, 60, 1), strict=True)))

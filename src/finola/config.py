"""Model configuration and its one-line name.

ENCODER/CxM@MAP[:IMAGE][+option …]        mf-w2880/1024x4@64+scatter    waves+conv/256x1@16:64
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from finola.errors import InputError, UnknownNameError

Size = tuple[int, int]

DEFAULT_MODEL = "tile32"
DEFAULT_CODEC = "tile32"
PLAIN_CODEC = "photo256"  # for mode paper, which needs q of a fixed length
DEFAULT_WHOLE = "photo256"  # encodes a whole image as one vector
"""Default models of the commands."""
DEFAULT_BUDGET = 4096
"""Numbers of an elastic model for a photo of 256×256 pixels."""

HEADS = {
    "classify": ("lin", "tran-1", "tran-4"),
    "detect": ("mf-dec-522", "mf-dec-211"),
    "segment": ("mask-rcnn",),
}
"""Names of the heads of each task."""

INITIALISATIONS = ("random", "waves", "wave-matrices")
"""Initialisations of a model. A `waves…` model always has `waves`; `wave-matrices` are plane waves in A and B only."""

EXACT = "waves+nets"
"""Encoder of models with exact plane waves between two networks on pixels."""

RESIDUAL = re.compile(r"residual-w([1-9]\d{0,3})(\+linear)?")
"""Residual encoders for small models, which compute q without pooling: `residual-wWIDTH`, with `+linear` a linear layer
from pixels to q beside it."""

RESIDUAL_MAP = re.compile(r"residual-map-w([1-9]\d{0,3})")
"""Residual encoders for small models with a feature map of 1/8 of the image size: `residual-map-wWIDTH`."""

MOBILE_FORMERS = ("mf-w720", "mf-w1440", "mf-w2880", "mf-w4320", "mf-w5760")
STARTS = {
    "scatter": "scatter",
    "corner": "top-left",
    "top-right": "top-right",
    "bottom-left": "bottom-left",
    "bottom-right": "bottom-right",
}
TRANSITIONS = {
    "linear": "linear",
    "repeat": "repetition",
    "mlp": "norm-mlp",
    "batchnorm": "batch-norm",
    "convae": "conv-ae",
    "free": "free",
}
RECURRENT = ("norm-linear", "linear", "repetition", "norm-mlp", "batch-norm")
"""Transitions that are recurrences. The others are controls that compute the whole map from q: Conv-AE, a free linear
map, and the residual Conv-AE `resaeWIDTH`."""
SPEEDS = {"real": "real", "unit": "unit", "commuting": "commuting"}
OPTIONS = (*STARTS, "at<Y>x<X>", *TRANSITIONS, *SPEEDS, "flat", "pos", "patch", "refined")
OPTIONS += ("resae<width>", "residual<width>", "tran<blocks>[w<width>]", "slim<factor>", "elastic<bases>")
TRANSFORMER = re.compile(r"tran([1-9]\d*)(?:w([1-9]\d{0,3}))?")
"""Transformer decoders: number of blocks, and width if it is not the paper's 512."""

_NAME = re.compile(r"(?P<encoder>[^/@:]+)/(?P<c>\d+)x(?P<m>\d+)@(?P<rest>.+)")
_SIZE = re.compile(r"(\d+)(?:x(\d+))?")


def nearest(word: str, known: Iterable[str], count: int = 3) -> str:
    """Suggest the known names closest to `word`, as the last clause of an error message.

    >>> nearest("scater", ["scatter", "unit"])
    'did you mean scatter?'
    """
    known = list(known)
    found = difflib.get_close_matches(word, known, n=count, cutoff=0.4)
    return f"did you mean {' or '.join(found)}?" if found else f"known are {', '.join(known[:12])}."


@dataclass(frozen=True)
class ModelConfig:
    """Configuration of an `Autoencoder`. `str(config)` is its name; `ModelConfig.parse(name)` is the inverse.

    >>> ModelConfig.parse("mf-w720/512x1@16+corner").start
    'top-left'
    >>> str(ModelConfig("waves", 256, 1, (16, 16), (64, 64)))
    'waves/256x1@16:64'
    """

    # mf-w720 … mf-w5760, residual-wWIDTH[+linear], residual-map-wWIDTH, waves[+REFINEMENT], or a timm model
    encoder: str
    channels: int  # C
    paths: int  # M
    map_size: Size  # of z
    image_size: Size = (256, 256)
    start: str | Size = "center"  # center, scatter, a corner, or one cell (y, x)
    transition: str = "norm-linear"
    # complex (free A, B), real (P·diag), unit (one P), commuting (shared eigenvectors), fixed (exact waves)
    speeds: str = "complex"
    flat: bool = False  # one linear layer from the whole feature map to q instead of attention pooling
    position: bool = False  # add a position embedding before the decoder; always added with unit speeds
    # upsample, patch (linear), refined (linear + convolutions), residualWIDTH (linear + residual blocks), tranK[wWIDTH]
    # (K transformer blocks + linear)
    decoder: str = "upsample"
    slim: int = 1  # divides the widths of the upsampling decoder and of Conv-AE
    elastic: int = 0  # number of bases of the codebook for q of any length; 0: q has a fixed length

    def __post_init__(self) -> None:
        for field in ("map_size", "image_size", "start"):
            value = getattr(self, field)
            if isinstance(value, list):  # JSON and YAML have no tuples
                object.__setattr__(self, field, tuple(value))
        if self.is_exact:
            object.__setattr__(self, "speeds", "fixed")
        if self.speeds == "unit":
            object.__setattr__(self, "position", True)
        if min(self.channels, self.paths, *self.map_size, *self.image_size) < 1:
            raise InputError(f"Model name {self}: channels, paths, map size and image size must be at least 1.")
        if self.image_size[0] % self.map_size[0] or self.image_size[1] % self.map_size[1]:
            raise InputError(
                f"Model name {self}: map size {show_size(self.map_size)} does not divide image size "
                f"{show_size(self.image_size)}. Each side of the image must be a multiple of that of the map."
            )
        if self.speeds not in ("complex", "fixed") and self.transition != "norm-linear":
            raise InputError(f"Model name {self}: {self.speeds} speeds need norm+linear, got {self.transition}.")
        if self.transition == "conv-ae" and self.paths != 4:
            raise InputError(f"Model name {self}: Conv-AE pools to a 2x2 grid and needs 4 paths, got {self.paths}.")
        if self.transition not in RECURRENT and self.decoder == "refined":
            raise InputError(f"Model name {self}: {self.transition} has no wave decoder to refine. Remove +refined.")
        if self.is_waves and (self.transition, self.speeds) not in (
            ("norm-linear", "complex"),
            ("norm-linear", "fixed"),
        ):
            raise InputError(
                f"Model name {self}: wave initialisation needs norm+linear with unconstrained A and B, "
                f"got {self.speeds} speeds with {self.transition}."
            )
        if self.slim > 1 and (self.is_waves or (self.decoder != "upsample" and self.transition != "conv-ae")):
            raise InputError(f"Model name {self}: +slim{self.slim} needs the upsampling decoder or Conv-AE. Remove it.")
        if self.elastic and (not self.is_exact or self.paths != 1):
            raise InputError(f"Model name {self}: +elastic{self.elastic} needs the encoder {EXACT} and one path.")
        if self.is_waves and self.decoder != "upsample":
            raise InputError(f"Model name {self}: a wave model has a fixed decoder. Remove +{self.decoder}.")
        if self.flat and self.returns_q:
            raise InputError(f"Model name {self}: +flat needs an encoder with a feature map, not {self.encoder}.")
        if (match := TRANSFORMER.fullmatch(self.decoder)) and int(match[2] or 8) % 8:
            raise InputError(f"Model name {self}: the width of +{self.decoder} must be a multiple of its 8 heads.")

    @property
    def cell(self) -> Size:
        """Size in pixels of one position of the map, (height, width)."""
        return self.image_size[0] // self.map_size[0], self.image_size[1] // self.map_size[1]

    @property
    def is_waves(self) -> bool:
        """Whether the encoder computes q by least squares on plane waves."""
        return self.encoder.split("+")[0] == "waves"

    @property
    def is_exact(self) -> bool:
        """Whether A, B and the read-out are plane waves that are not trained, with networks on pixels around them."""
        return self.encoder == EXACT

    @property
    def returns_q(self) -> bool:
        """Whether the encoder computes q itself, without a feature map and pooling."""
        return self.is_waves or RESIDUAL.fullmatch(self.encoder) is not None

    def __str__(self) -> str:
        name = f"{self.encoder}/{self.channels}x{self.paths}@{_size_in_name(self.map_size)}"
        if self.image_size != (256, 256):
            name += f":{_size_in_name(self.image_size)}"
        options = []
        if isinstance(self.start, tuple):
            options.append(f"at{self.start[0]}x{self.start[1]}")
        for words, value in ((STARTS, self.start), (TRANSITIONS, self.transition), (SPEEDS, self.speeds)):
            options += [word for word, meaning in words.items() if meaning == value]
        if self.flat:
            options.append("flat")
        if self.position and self.speeds != "unit":
            options.append("pos")
        if self.transition.startswith("resae"):
            options.append(self.transition)
        if self.decoder != "upsample":
            options.append(self.decoder)
        if self.slim > 1:
            options.append(f"slim{self.slim}")
        if self.elastic:
            options.append(f"elastic{self.elastic}")
        return "+".join([name, *options])

    @classmethod
    def parse(cls, name: str) -> ModelConfig:
        """Parse a one-line name. An invalid name raises InputError with the invalid part and close alternatives."""
        match = _NAME.fullmatch(name.strip())
        if not match:
            raise InputError(
                f"{name!r} is not a model name; an example is mf-w2880/1024x4@64 "
                "(encoder / channels x paths @ map size, then :image size and +options)."
            )
        encoder = match["encoder"]
        if encoder.startswith("mf-") and encoder not in MOBILE_FORMERS:
            raise UnknownNameError(f"Unknown encoder {encoder!r} in {name!r}: {nearest(encoder, MOBILE_FORMERS)}")
        sizes, *options = match["rest"].split("+")
        if options and ":" in options[-1] and ":" not in sizes:  # …@16+corner:64 is parsed like …@16:64+corner
            options[-1], image = options[-1].split(":", 1)
            sizes += f":{image}"
        map_text, _, image_text = sizes.partition(":")
        settings: dict[str, object] = {}
        for option in options:
            for key, value in _read_option(option, name).items():
                if key in settings:
                    raise InputError(f"Model name {name!r} sets {key} twice.")
                settings[key] = value
        return cls(
            encoder,
            int(match["c"]),
            int(match["m"]),
            _read_size(map_text, name),
            _read_size(image_text or "256", name),
            **settings,  # type: ignore[arg-type]
        )


def show_size(size: Size) -> str:
    """Format a size (height, width) for people, width first.

    >>> show_size((480, 640))
    '640×480'
    """
    return f"{size[1]}×{size[0]}"


def _size_in_name(size: Size) -> str:
    """Format a size in a model name: `16` if square, otherwise `16x24` (height x width)."""
    return str(size[0]) if size[0] == size[1] else f"{size[0]}x{size[1]}"


def _read_size(text: str, name: str) -> Size:
    match = _SIZE.fullmatch(text)
    if not match:
        raise InputError(f"{text!r} in {name!r} is not a size; examples are 64 and 48x64 (height x width).")
    return int(match[1]), int(match[2] or match[1])


def _read_option(option: str, name: str) -> dict[str, object]:
    if option in STARTS:
        return {"start": STARTS[option]}
    if match := re.fullmatch(r"at(\d+)x(\d+)", option):
        return {"start": (int(match[1]), int(match[2]))}
    if option in TRANSITIONS:
        return {"transition": TRANSITIONS[option]}
    if option in SPEEDS:
        return {"speeds": SPEEDS[option]}
    if re.fullmatch(r"resae[1-9]\d{0,3}", option):
        return {"transition": option}
    if option in ("flat", "pos"):
        return {"flat" if option == "flat" else "position": True}
    if option in ("patch", "refined") or TRANSFORMER.fullmatch(option) or re.fullmatch(r"residual[1-9]\d{0,3}", option):
        return {"decoder": option}
    if match := re.fullmatch(r"slim([2-9]|[1-9]\d)", option):
        return {"slim": int(match[1])}
    if match := re.fullmatch(r"elastic([1-9]\d{0,3})", option):
        return {"elastic": int(match[1])}
    raise UnknownNameError(f"Unknown option +{option} in {name!r}: {nearest(option, OPTIONS)}")

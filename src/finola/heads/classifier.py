"""Classification heads of the paper, `lin`, `tran-1` and `tran-4`, on the last feature map of an encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from finola.config import HEADS
from finola.encoders import build_encoder
from finola.errors import InputError, UnknownNameError
from finola.layers import differentiable_attention
from finola.serialization import Pretrained


def ranks(logits: Tensor, labels: Tensor) -> Tensor:
    """Rank of the true class, that is the number of classes with a higher logit: (N,).

    >>> ranks(torch.tensor([[0.1, 0.7, 0.2]]), torch.tensor([2]))
    tensor([1])
    """
    return (logits > logits.gather(1, labels[:, None])).sum(1)


class LinearHead(nn.Module):
    """`lin`: global average pooling, batch norm without affine parameters, linear layer."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(channels, affine=False)
        self.linear = nn.Linear(channels, classes)

    def forward(self, feature_map: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.norm(feature_map.mean((2, 3))))
        return logits


class TransformerHead(nn.Module):
    """`tran-K`: linear layer to `width`, K pre-norm transformer blocks over all positions, mean, linear layer."""

    def __init__(self, channels: int, classes: int, blocks: int, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Linear(channels, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                nhead=max(1, width // 64),
                dim_feedforward=4 * width,
                dropout=dropout,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, classes)

    def forward(self, feature_map: Tensor) -> Tensor:
        tokens = self.embed(feature_map.flatten(2).transpose(1, 2))  # (N, H·W, width)
        with differentiable_attention(tokens):
            for block in self.blocks:
                tokens = block(tokens)
        logits: Tensor = self.linear(self.norm(tokens).mean(1))
        return logits


def head_width(channels: int) -> int:
    """Width of a transformer head: 192, 384 and 768 for encoders of 720, 1440 and 2880 channels.

    >>> [head_width(channels) for channels in (720, 1440, 2880)]
    [192, 384, 768]
    """
    return max(64, 64 * round(channels * 4 / 15 / 64))


def build_head(name: str, channels: int, classes: int, dropout: float = 0.0) -> nn.Module:
    """Build a classification head by name for an encoder with `channels` channels.

    >>> build_head("tran-1", 720, classes=10)(__import__("torch").rand(2, 720, 4, 4)).shape
    torch.Size([2, 10])
    """
    if name not in HEADS["classify"]:
        raise UnknownNameError(f"Unknown head {name!r}; use one of {', '.join(HEADS['classify'])}.")
    if name == "lin":
        return LinearHead(channels, classes)
    return TransformerHead(channels, classes, int(name.removeprefix("tran-")), head_width(channels), dropout)


class Classifier(nn.Module, Pretrained, tags=["finola", "image-classification"]):
    """Classifier of an encoder and a head, both by name. With `frozen` the encoder is fixed and in evaluation mode.

    Photos are evaluated by a centre crop of `image_size`, the fraction `crop_pct` of the resized photo (see
    `finola.data.CentreCrop`).

    >>> model = Classifier("mf-w720", "lin", ["cat", "dog"], image_size=64).eval()
    >>> model.rank(torch.rand(3, 64, 64))[0][0] in ("cat", "dog")
    True
    """

    model_type = "classifier"

    def __init__(
        self,
        encoder: str,
        head: str,
        classes: list[str] | int,
        image_size: int = 224,
        *,
        frozen: bool = True,
        dropout: float = 0.0,
        crop_pct: float = 1.0,
    ) -> None:
        super().__init__()
        self.classes = [str(number) for number in range(classes)] if isinstance(classes, int) else list(classes)
        if not self.classes:
            raise InputError("A classifier needs at least one class, got 0.")
        self.image_size, self.crop_pct, self.frozen = (image_size, image_size), crop_pct, frozen
        self.encoder = build_encoder(encoder, self.image_size)
        channels = int(self.encoder.channels)  # type: ignore[arg-type]
        self.head = build_head(head, channels, len(self.classes), dropout)
        if frozen:
            self.encoder.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Classifier:
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Classify images (N, 3, H, W) in [0, 1]; return logits (N, classes)."""
        logits: Tensor = self.head(self.encoder(images))
        return logits

    @torch.inference_mode()
    def rank(self, image: Tensor, count: int | None = None) -> list[tuple[str, float]]:
        """Class names and probabilities of one image (3, H, W), most probable first."""
        probabilities = self(image[None]).softmax(1)[0]
        order = probabilities.argsort(descending=True)[:count]
        return [(self.classes[int(number)], float(probabilities[number])) for number in order]

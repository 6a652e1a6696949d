"""Patch decoders: each position of z is decoded to its cell of pixels by a linear layer or a transformer."""

from __future__ import annotations

from torch import Tensor, nn

from finola.layers import differentiable_attention


def patches_to_image(patches: Tensor, cell: tuple[int, int]) -> Tensor:
    """Rearrange patches (N, H, W, 3·cell_h·cell_w) to images (N, 3, H·cell_h, W·cell_w).

    >>> import torch
    >>> patches_to_image(torch.zeros(1, 2, 3, 3 * 4 * 5), (4, 5)).shape
    torch.Size([1, 3, 8, 15])
    """
    n, height, width, _ = patches.shape
    pixels = patches.reshape(n, height, width, 3, *cell)
    return pixels.permute(0, 3, 1, 4, 2, 5).reshape(n, 3, height * cell[0], width * cell[1])


class PatchDecoder(nn.Module):
    """Linear decoder from each position to its cell of pixels, as in masked FINOLA (appendix B)."""

    def __init__(self, channels: int, cell: tuple[int, int]) -> None:
        super().__init__()
        self.cell = cell
        self.linear = nn.Linear(channels, 3 * cell[0] * cell[1])

    def forward(self, z: Tensor) -> Tensor:
        return patches_to_image(self.linear(z.permute(0, 2, 3, 1)), self.cell)


class TransformerDecoder(nn.Module):
    """Transformer blocks of width 512 without position embedding, then a linear layer (Masked-FINOLA-B, appendix B)."""

    def __init__(self, channels: int, cell: tuple[int, int], blocks: int, width: int = 512) -> None:
        super().__init__()
        self.embed = nn.Identity() if channels == width else nn.Linear(channels, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                nhead=8,
                dim_feedforward=4 * width,
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(width)
        self.patch = PatchDecoder(width, cell)

    def forward(self, z: Tensor) -> Tensor:
        height, width = z.shape[-2:]
        tokens = self.embed(z.permute(0, 2, 3, 1).flatten(1, 2))  # (N, H·W, 512)
        with differentiable_attention(tokens):
            for block in self.blocks:
                tokens = block(tokens)
        tokens = self.norm(tokens).unflatten(1, (height, width))
        image: Tensor = self.patch(tokens.permute(0, 3, 1, 2))
        return image

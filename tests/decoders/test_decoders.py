from __future__ import annotations

import pytest
import torch

import finola
from finola.config import ModelConfig
from finola.decoders import build_decoder
from finola.decoders.conv_ae import ConvGrower, FreeMap, ResidualGrower
from finola.decoders.patch import PatchDecoder, TransformerDecoder, patches_to_image
from finola.decoders.residual import ResidualDecoder
from finola.decoders.upsampling import UpsamplingDecoder


@pytest.mark.parametrize("cell", [1, 2, 4, 8, 16, 32])
def test_every_column_of_the_table_gives_pixels(cell):
    with torch.device("meta"):
        assert UpsamplingDecoder(64, cell)(torch.empty(2, 64, 3, 5)).shape == (2, 3, 3 * cell, 5 * cell)


def test_columns_differ_by_the_blocks_of_the_table():
    """Column 8² has one res-conv and one up-conv of 512 more than column 16²: 27·512² weights."""
    with torch.device("meta"):
        convolutions = {
            cell: sum(p.numel() for p in UpsamplingDecoder(512, cell).parameters() if p.ndim == 4) for cell in (32, 16)
        }
    assert convolutions[32] - convolutions[16] == 27 * 512**2


def test_pooling_matrices_and_decoder_are_the_papers_16_6_million():
    from finola.model_counts import count

    counted = count("mf-w2880/1024x2@64")
    millions = {station: counted[station].parameters / 1e6 for station in ("pooling", "propagation", "decoder")}
    assert round(millions["pooling"], 2) == 8.00
    assert round(millions["propagation"], 2) == 4.19
    assert round(millions["decoder"], 2) == 4.43
    assert round(sum(millions.values()), 1) == 16.6


def test_a_patch_lands_in_its_cell():
    image = torch.rand(2, 3, 8, 15)
    patches = image.reshape(2, 3, 2, 4, 3, 5).permute(0, 2, 4, 1, 3, 5).reshape(2, 2, 3, 60)
    assert torch.equal(patches_to_image(patches, (4, 5)), image)


def test_patch_decoder_decodes_positions_independently():
    decoder = PatchDecoder(6, (4, 4))
    z = torch.randn(1, 6, 3, 3)
    changed = z.clone()
    changed[:, :, 1, 2] += 1
    difference = (decoder(changed) - decoder(z)).abs().sum(1)[0] > 1e-6
    assert difference[4:8, 8:12].any() and difference.sum() == difference[4:8, 8:12].sum()


def test_transformer_decoder_has_no_position_embedding():
    decoder = TransformerDecoder(16, (2, 2), blocks=2).eval()
    z = torch.randn(1, 16, 2, 3)
    out = decoder(z).reshape(1, 3, 2, 2, 3, 2)
    turned = decoder(z.flip(3)).reshape(1, 3, 2, 2, 3, 2)
    assert torch.allclose(turned, out.flip(4), atol=1e-5)


def test_residual_decoder_starts_as_its_linear_read_out():
    decoder = ResidualDecoder(6, (4, 2), width=8)
    z = torch.randn(2, 6, 3, 5)
    before = decoder(z)
    torch.nn.init.normal_(decoder.blocks[1].last.weight)
    assert torch.equal(decoder(z), before)
    torch.testing.assert_close(before, 0.45 + 0.25 * decoder.read_out(z))
    torch.nn.init.normal_(decoder.correction.linear.weight)
    assert not torch.allclose(decoder(z), before)


def test_conv_ae_upsamples_a_grid():
    with torch.device("meta"):
        assert ConvGrower(512, (64, 64))(torch.empty(2, 4, 512)).shape == (2, 1024, 64, 64)
    with pytest.raises(ValueError, match="24×24"):
        ConvGrower(8, (24, 24))


@pytest.mark.parametrize("size", [(8, 8), (16, 16), (6, 12), (3, 5), (2, 2)])
@pytest.mark.parametrize("option", ["free", "resae8"])
def test_maps_without_a_recurrence_depend_on_all_of_q(option, size):
    config = ModelConfig("residual-w8", 6, 2, size, (4 * size[0], 4 * size[1]), transition=option, decoder="patch")
    model = finola.create(str(config))
    q = torch.randn(1, 2, 6, requires_grad=True)
    z = model.propagate(q)
    assert z.shape == (1, 6, *size)
    z.square().sum().backward()
    assert (q.grad.abs() > 0).all()
    assert "transition" not in dict(model.named_children())


def test_the_free_map_has_independent_positions():
    free = FreeMap(4, paths=1, size=(3, 2))
    q = torch.randn(2, 1, 4)
    before = free(q).detach()
    with torch.no_grad():
        free.linear.weight.view(3, 2, 4, 4)[1, 0] += 1
    changed = (free(q) - before).abs().sum((0, 1)) > 0
    assert changed[1, 0] and changed.sum() == 1


def test_a_residual_conv_ae_starts_from_at_most_4x4():
    assert ResidualGrower(8, 1, (16, 8), 4).size == (4, 2)
    assert ResidualGrower(8, 1, (8, 8), 4).size == (4, 4)
    assert ResidualGrower(8, 1, (5, 10), 4).size == (5, 10)  # an odd side cannot be halved


@pytest.mark.parametrize(
    "build", [lambda s: UpsamplingDecoder(512 // s, 16, s), lambda s: ConvGrower(512 // s, (64, 64), s)]
)
def test_slim_divides_all_widths(build):
    """Every convolution but the last one of the decoder, which has three outputs, has 1/16² of the weights."""
    with torch.device("meta"):
        wide, slim = ([p for p in build(factor).parameters() if p.ndim == 4] for factor in (1, 16))
    assert all(a.numel() == b.numel() * (16 if len(a) == 3 else 256) for a, b in zip(wide, slim, strict=True))


def test_a_small_conv_ae_scales_like_finola():
    """The ratio of its parameters to those of the four matrices is that of the paper's models, up to their depth."""
    from finola.model_counts import count

    large, small = (
        count(conv)["propagation"].parameters / count(wave)["propagation"].parameters
        for conv, wave in (
            ("mf-w2880/512x4@64+convae", "mf-w2880/1024x2@64"),
            ("mf-w720/32x4@16:64+convae+slim16", "mf-w720/64x2@16:64+slim16"),
        )
    )
    assert large / 2 < small < large


def test_unsupported_cells_raise_with_their_size():
    with pytest.raises(ValueError, match="64"):
        build_decoder(ModelConfig.parse("mf-w720/64x1@4"))
    with pytest.raises(ValueError, match="16×32"):
        build_decoder(ModelConfig.parse("mf-w720/64x1@8x16"))

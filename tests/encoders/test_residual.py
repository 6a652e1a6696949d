"""Residual encoders: q without pooling, or a feature map, by name in any model that takes one."""

from __future__ import annotations

import pytest
import torch

import finola
from finola.config import ModelConfig
from finola.encoders import build_encoder
from finola.encoders.residual import LAST, ResidualEncoder, ResidualMap
from finola.errors import InputError
from finola.heads import Classifier
from finola.layers import FlatPool, ResidualBlock
from finola.masked import MaskedFinola, random_places
from finola.model_counts import count
from finola.model_zoo import load_encoder


@pytest.mark.parametrize(
    "name",
    [
        "residual-w8/16x1@4:32+patch",
        "residual-w8+linear/16x4@8x4:64x32+scatter+residual8",
        "residual-w4+linear/16x2@3x5:36x20+residual4",  # stages with odd sides
    ],
)
def test_any_autoencoder_may_have_it(name: str) -> None:
    model = finola.create(name)
    config = model.config
    assert str(config) == name
    images = torch.rand(2, 3, *config.image_size)
    assert model.encode(images).shape == (2, config.paths, config.channels)
    assert not list(model.pool.parameters())
    with torch.no_grad():  # zero-initialised layers pass no gradient to those before them
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    (model(images) - images).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
    assert model(torch.rand(1, 3, 80, 48)).shape == (1, 3, 80, 48)  # other sizes in tiles


def test_a_residual_block_is_the_identity_before_training_and_local() -> None:
    block = ResidualBlock(8)
    x = torch.randn(2, 8, 7, 6)
    assert torch.equal(block(x), x)
    torch.nn.init.normal_(block.last.weight)
    assert not torch.allclose(block(x), x)
    changed = x.clone()
    changed[:, :, 0, 0] += 1
    assert torch.equal(block(changed)[:, :, 3:], block(x)[:, :, 3:])  # no statistics over the map


@pytest.mark.parametrize("size", [(32, 32), (64, 64), (256, 256), (36, 100)])
def test_every_pixel_reaches_q_and_the_last_stage_is_small(size: tuple[int, int]) -> None:
    config = ModelConfig("residual-w4", 8, 1, (1, 1), size, decoder="patch")
    encoder = ResidualEncoder(config, width=4)
    width = next(p for name, p in encoder.named_parameters() if name == "to_q.weight").shape[1]
    stages = [layer for layer in encoder.layers if isinstance(layer, torch.nn.Conv2d)]
    assert width <= stages[-1].out_channels * LAST**2
    assert [stage.out_channels for stage in stages] == [4 * 2**i for i in range(len(stages))]
    images = torch.rand(1, 3, *size, requires_grad=True)
    encoder(images).square().sum().backward()
    assert images.grad is not None
    assert (images.grad.abs().sum(1) > 0).all()


def test_the_linear_layer_is_added_to_q() -> None:
    config = ModelConfig.parse("residual-w4+linear/8x2@4:32+patch")
    encoder = build_encoder(config.encoder, config.image_size, config)
    assert isinstance(encoder, ResidualEncoder) and encoder.from_pixels is not None
    images = torch.rand(1, 3, 32, 32)
    q = encoder(images)
    with torch.no_grad():
        encoder.from_pixels.bias += torch.arange(16.0)
    torch.testing.assert_close(encoder(images) - q, torch.arange(16.0).view(1, 2, 8), atol=1e-4, rtol=0)
    plain = build_encoder("residual-w4", config.image_size, config)
    assert plain.from_pixels is None


def test_saved_models_load(tmp_path) -> None:
    model = finola.create("residual-w8+linear/16x1@4:32+residual8").eval()
    model.save_pretrained(tmp_path)
    images = torch.rand(1, 3, 32, 32)
    assert torch.equal(finola.load(tmp_path)(images), model(images))


def test_counts_are_those_of_its_layers() -> None:
    name = "residual-w16+linear/32x1@8:64+residual16"
    model, counted = finola.create(name), count(name)
    for part in ("encoder", "decoder"):
        assert counted[part].parameters == sum(p.numel() for p in getattr(model, part).parameters())


def test_the_residual_map_commutes_with_shifts_away_from_the_border() -> None:
    encoder = ResidualMap(8)
    with torch.no_grad():  # zero-initialised layers would hide the reach of a block
        for parameter in encoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    images, shift = torch.rand(1, 3, 192, 176), encoder.reduction
    whole, part = encoder(images), encoder(images[..., shift:, 2 * shift :])
    torch.testing.assert_close(part[..., 8:-8, 8:-8], whole[..., 9:-8, 10:-8])
    assert [tuple(m.shape[1:]) for m in encoder.stages(images)] == [(8, 48, 44), (16, 24, 22)]


@pytest.mark.parametrize("variant", ["e", "b"])
def test_the_residual_map_is_an_encoder_of_every_kind_of_model(variant: str, tmp_path) -> None:
    images = torch.rand(2, 3, 64, 48)
    name = f"residual-map-w8/16x1@8x6:64x48+{'flat+patch' if variant == 'e' else 'tran1w8'}"
    masked = MaskedFinola(name, variant).eval()
    assert str(masked.config) == name and isinstance(masked.pool, FlatPool) == (variant == "e")
    assert masked(images, random_places(2, masked.map_size)).images.shape == images.shape
    masked.save_pretrained(tmp_path)
    encoder = load_encoder(tmp_path)
    assert torch.equal(encoder(images), masked.encoder(images))
    classifier = Classifier("residual-map-w8", "tran-1", 3, image_size=64)
    classifier.encoder.load_state_dict(encoder.state_dict())
    assert classifier(images).shape == (2, 3)
    assert load_encoder("residual-map-w8").state_dict().keys() == encoder.state_dict().keys()


def test_flat_pooling_is_a_linear_layer_on_the_whole_map() -> None:
    model = finola.create("residual-map-w8/16x3@8:64+flat+patch")
    pool = model.pool
    assert isinstance(pool, FlatPool) and pool.linear.weight.shape == (16 * 3, 16 * 8 * 8)
    feature_map = torch.randn(2, 16, 8, 8)
    expected = (feature_map.flatten(1) @ pool.linear.weight.T + pool.linear.bias).view(2, 3, 16)
    torch.testing.assert_close(pool(feature_map), expected)
    assert model(torch.rand(1, 3, 80, 128)).shape == (1, 3, 80, 128)  # other sizes in tiles
    assert count(str(model.config))["pooling"].parameters == sum(p.numel() for p in pool.parameters())


def test_invalid_uses_raise() -> None:
    with pytest.raises(InputError, match="feature map"):
        finola.create("residual-w8/16x1@8:64+flat+patch")
    with pytest.raises(InputError, match=r"\+flat"):
        MaskedFinola("residual-map-w8/16x1@8:64+flat+patch", "b")
    with pytest.raises(InputError, match="tran1w12"):
        finola.create("residual-map-w8/16x1@8:64+tran1w12")
    with pytest.raises(InputError, match="60"):
        ResidualMap(8)(torch.rand(1, 3, 60, 64))
    with pytest.raises(InputError, match="residual-w8"):
        build_encoder("residual-w8", (64, 64))
    with pytest.raises(InputError, match="residual-w8"):
        MaskedFinola("residual-w8/16x1@4:64+patch", "e")
    with pytest.raises(InputError, match="residual-w8"):
        finola.create("residual-w8/16x1@4:32+patch", pretrained=True)
    with pytest.raises(InputError, match="30"):
        finola.create("residual-w8/16x1@5:30+patch")

"""Light convolutional encoder: q without pooling, by name in any autoencoder."""

from __future__ import annotations

import pytest
import torch

import finola
from finola.encoders import build_encoder
from finola.encoders.light import LightEncoder
from finola.errors import InputError
from finola.masked import MaskedFinola
from finola.model_counts import count


@pytest.mark.parametrize("name", ["conv-light/16x1@4:32+patch", "conv-light/16x4@8x4:64x32+scatter+slim16"])
def test_any_autoencoder_may_have_it(name: str) -> None:
    model = finola.create(name)
    config = model.config
    images = torch.rand(2, 3, *config.image_size)
    q = model.encode(images)
    assert q.shape == (2, config.paths, config.channels)
    assert not list(model.pool.parameters())
    loss = (model(images) - images).square().mean()
    loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    assert model(torch.rand(1, 3, 80, 48)).shape == (1, 3, 80, 48)  # other sizes in tiles


def test_it_learns_random_images_within_few_steps() -> None:
    torch.manual_seed(0)
    model = finola.create("conv-light/32x1@4:16+patch")
    images = torch.rand(4, 3, 1, 1).expand(4, 3, 16, 16)
    optimiser = torch.optim.AdamW(model.parameters(), 2e-3)
    losses = []
    for _ in range(60):
        loss = (model(images) - images).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.1 * losses[0]


def test_saved_models_load(tmp_path) -> None:
    model = finola.create("conv-light/16x1@4:32+patch").eval()
    model.save_pretrained(tmp_path)
    images = torch.rand(1, 3, 32, 32)
    assert torch.equal(finola.load(tmp_path)(images), model(images))


def test_counts_are_those_of_its_layers() -> None:
    encoder = finola.create("conv-light/256x1@16:64+patch").encoder
    assert isinstance(encoder, LightEncoder)
    counted = count("conv-light/256x1@16:64+patch")
    assert counted["encoder"].parameters == sum(p.numel() for p in encoder.parameters())
    assert counted["pooling"].parameters == 0


def test_tasks_on_a_feature_map_raise() -> None:
    with pytest.raises(InputError, match="conv-light"):
        build_encoder("conv-light", (64, 64))
    with pytest.raises(InputError, match="conv-light"):
        MaskedFinola("conv-light/16x1@4:64+patch", "e")
    with pytest.raises(InputError, match="conv-light"):
        finola.create("conv-light/16x1@4:32+patch", pretrained=True)

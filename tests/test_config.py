from __future__ import annotations

import pytest

from finola.config import ModelConfig
from finola.errors import InputError
from finola.paper.tables import MODELS

NAMES = [name for names in MODELS.values() for name in names if "@" in name] + [
    "mf-w720/512x1@16+corner",
    "mf-w2880/2048x16@64+scatter",
    "resnet18/256x1@16",
    "mf-w720/64x2@16:256x128+at3x5+patch",
    "mf-w720/64x1@8x16:128x256+bottom-left+real",
    "mf-w1440/512x1@16+tran6",
    "waves+mf-w720/256x1@16:64",
    "residual-w8/64x4@16:64+scatter+slim16",
    "residual-w64/96x1@8:32+patch",
    "residual-w64+linear/256x1@8:64+residual128",
    "residual-w64/96x1@8:32+free+patch",
    "residual-w64/96x2@8:32+resae24+residual64",
    "mf-w720/32x4@16:64+convae+slim16",
    "mf-w720/32x4@16:64+convae+patch+slim8",
    "mf-w720/512x1@16+unit",
    "mf-w720/512x1@16+commuting",
]


@pytest.mark.parametrize("name", [*NAMES, "mf-w720/512x1@16+unit+pos"])
def test_parsing_and_printing_are_inverse(name):
    config = ModelConfig.parse(name)
    assert ModelConfig.parse(str(config)) == config


@pytest.mark.parametrize("name", [name for name in NAMES if "16:256x128" not in name])
def test_a_canonical_name_is_printed_unchanged(name):
    assert str(ModelConfig.parse(name)) == name


def test_the_image_size_may_follow_the_options():
    assert str(ModelConfig.parse("mf-w720/512x1@16+corner:64")) == "mf-w720/512x1@16:64+corner"


def test_fields_of_a_parsed_name():
    config = ModelConfig.parse("mf-w2880/1024x4@64+scatter")
    assert (config.channels, config.paths, config.map_size, config.image_size) == (1024, 4, (64, 64), (256, 256))
    assert (config.start, config.cell, config.speeds) == ("scatter", (4, 4), "complex")
    assert ModelConfig.parse("mf-w2880/1024x4@64+unit").position
    assert not config.position


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("mf-w7200/512x1@16", "'mf-w7200'.*mf-w720"),
        ("mf-w720/512x1@16+scater", "scater.* scatter"),
        ("mf-w720/512x1@16+corner+scatter", "'mf-w720/512x1@16\\+corner\\+scatter'.*start"),
        ("mf-w720/512@16", "'mf-w720/512@16'"),
        ("mf-w720/512x1@16:large", "'large'"),
        ("mf-w720/512x1@24", "24.*256"),
        ("mf-w720/0x1@16", "mf-w720/0x1@16.*at least 1"),
        ("mf-w720/512x1@16+mlp+real", "real.*norm-mlp"),
        ("waves/256x1@16:64+real", "real.*norm-linear"),
        ("waves/256x1@16:64+patch", "patch"),
        ("mf-w720/512x2@64+convae", "got 2"),
        ("mf-w720/512x1@64+free+refined", "free"),
        ("mf-w720/512x1@64+free+resae8", "free.*transition twice"),
        ("mf-w720/64x1@8:64+patch+slim4", "slim4.*upsampling"),
        ("waves/256x1@16:64+slim4", "slim4.*upsampling"),
        ("mf-w720/64x1@8:64+slim1", "slim1"),
    ],
)
def test_invalid_names_raise_with_the_invalid_part(name, values):
    with pytest.raises(InputError, match=values):
        ModelConfig.parse(name)

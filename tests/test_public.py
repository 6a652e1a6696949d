"""The names that `import finola` provides."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import finola
from finola.errors import InputError


def test_dir_lists_the_public_names_alone() -> None:
    assert set(dir(finola)) == {*finola.__all__, "__version__"}
    assert all(getattr(finola, name) is not None for name in dir(finola))
    with pytest.raises(AttributeError, match="nothing"):
        finola.nothing  # noqa: B018


def test_models_are_listed_by_pattern() -> None:
    names = finola.list_models()
    assert len(set(names)) == len(names) and {"tile32", "photo256", "paper64"} <= set(names)
    assert finola.list_models("photo*") == ["photo256"] and finola.list_models("nothing*") == []


def test_a_model_is_loaded_onto_a_device() -> None:
    assert finola.load("waves/16x1@4:16", device="meta").device == torch.device("meta")
    assert finola.load("waves/16x1@4:16", device=torch.device("cpu")).device.type == "cpu"


@pytest.mark.parametrize("matrices", [torch.zeros(4, 8, 8), list(torch.zeros(4, 8, 8)), nn.Linear(8, 8)])
def test_waves_says_what_it_takes(matrices: object) -> None:
    with pytest.raises(InputError, match=r"finola\.Coefficients"):
        finola.waves(matrices)  # type: ignore[arg-type]

"""Models by name: encoders with pretrained weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import finola
from finola.errors import InputError, MissingFileError

NAME = "test_resnet/16x1@4:64+patch"


def test_a_created_model_has_the_pretrained_weights_of_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    import timm

    state = {
        key: torch.rand_like(value.float()) for key, value in timm.create_model("test_resnet").state_dict().items()
    }
    save_file(state, tmp_path / "model.safetensors")
    asked: list[tuple[str, str]] = []

    def download(repository: str, file: str) -> str:
        asked.append((repository, file))
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    encoder = finola.create(NAME, pretrained=True).encoder.model.state_dict()
    assert asked and asked[0][1] == "model.safetensors"
    assert all(torch.equal(value, state[key].to(value.dtype)) for key, value in encoder.items() if key in state)
    assert len(encoder.keys() & state.keys()) > 20


def test_pretrained_weights_that_cannot_be_downloaded_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def offline(repository: str, file: str) -> str:
        raise huggingface_hub.errors.LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    with pytest.raises(MissingFileError, match=r"test_resnet.*no connection"):
        finola.create(NAME, pretrained=True)


@pytest.mark.parametrize("name", ["mf-w720/16x1@4:64", "waves/16x1@4:16"])
def test_only_timm_encoders_have_pretrained_weights(name: str) -> None:
    with pytest.raises(InputError, match=name.split("/")[0]):
        finola.create(name, pretrained=True)

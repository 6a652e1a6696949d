"""Models on a device other than the CPU: every operation has its tensors on one device, and results are the same."""

import pytest
import torch
from placement import ELSEWHERE, SecondDevice

import finola
from finola.codec.calibration import calibrate
from finola.codec.samples import photo_coordinates
from finola.data import Whole, open_data
from finola.data.sources import evenly
from finola.evaluation.reconstruction import reconstruct

ELASTIC = "waves+nets/64x1@4:16+elastic2"


def test_operations_on_two_devices_raise():
    with SecondDevice():
        there = torch.ones(3, device=ELSEWHERE)
        assert there.device == ELSEWHERE and (2 * there.cumsum(0)).cpu().tolist() == [2, 4, 6]
        with pytest.raises(RuntimeError):
            there + torch.ones(3)
        with pytest.raises(RuntimeError):
            there.numpy()


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("tile32", {"quality": 40}),
        ("tile32", {"bpp": 0.5, "effort": 1}),
        ("waves512", {"quality": 40, "effort": 1}),
        ("waves512", {"mode": "paper"}),
    ],
)
def test_the_codec_runs_on_any_device(model, options):
    photo = torch.rand(3, 70, 100)
    file = finola.compress(photo, model=model, **options)
    with SecondDevice():
        assert finola.compress(photo, model=model, device=ELSEWHERE, **options).data == file.data
        image = finola.decompress(file.data, device=ELSEWHERE)
    assert image.device.type == "cpu" and torch.equal(image, finola.decompress(file.data))


@pytest.mark.parametrize(("model", "options"), [(ELASTIC, {"budget": 3000}), ("waves/64x1@8:32", {})])
def test_reconstruction_runs_on_any_device(model, options):
    model, images = finola.create(model), torch.rand(2, 3, 40, 70)
    expected = reconstruct(model, images, effort=1, **options)
    with SecondDevice():
        found = reconstruct(model.to(ELSEWHERE), images.to(ELSEWHERE), effort=1, **options)
        for one, same in zip(found, expected, strict=True):
            assert one.best.device == ELSEWHERE and one.used == same.used
            assert torch.equal(one.best.cpu(), same.best) and torch.equal(one.lengths, same.lengths)


def test_calibration_runs_on_any_device(tmp_path):
    model, tiles = finola.create("waves/16x1@4:16"), torch.rand(64, 3, 16, 16)
    calibrate(model, [tiles]).save(tmp_path / "here")
    with SecondDevice():
        calibrate(model.to(ELSEWHERE), [tiles]).save(tmp_path / "there")
    assert (tmp_path / "here").read_bytes() == (tmp_path / "there").read_bytes()


def test_photos_for_calibration_are_projected_on_any_device():
    model, data = finola.create(ELASTIC), open_data("smoke", "val", transform=Whole())
    data.source = evenly(data.source, 4)
    expected = list(photo_coordinates(model, data))
    with SecondDevice():
        found = list(photo_coordinates(model.to(ELSEWHERE), data))
    assert len(found) == 4
    for (p, columns), (same, columns_too) in zip(found, expected, strict=True):
        assert p.device.type == "cpu" and torch.equal(p, same) and columns == columns_too

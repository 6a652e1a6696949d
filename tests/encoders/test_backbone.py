import pytest
import timm
import torch

from finola.checks import check_size
from finola.encoders import build_encoder
from finola.encoders.backbone import Backbone
from finola.encoders.mobile_former import SPECS, MobileFormer
from finola.encoders.registry import REGISTERED


@pytest.mark.parametrize(
    ("name", "stage_channels", "finest"),
    [
        ("resnet18", [64, 64, 128, 256], 2),
        ("convnext_atto", [40, 80, 160], 4),
        ("vit_tiny_patch16_224", [192], 16),
        ("swin_tiny_patch4_window7_224", [96, 192, 384], 4),
        ("mobile_former_w720", [16, 28, 48, 720], 2),
    ],
)
def test_common_interface(name: str, stage_channels: list[int], finest: int) -> None:
    encoder = build_encoder(name, image_size=(64, 96)).eval()
    assert isinstance(encoder, Backbone)
    assert (encoder.channels, encoder.reduction) == (stage_channels[-1], 16)
    assert encoder.stage_channels == stage_channels
    images = torch.rand(2, 3, 64, 96)
    with torch.no_grad():
        maps = encoder.stages(images)
        torch.testing.assert_close(encoder(images), maps[-1])
    shapes = [(2, c, 64 // (finest << i), 96 // (finest << i)) for i, c in enumerate(stage_channels)]
    assert [tuple(z.shape) for z in maps] == shapes


def test_stages_below_one_sixteenth_are_not_built() -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in Backbone("resnet18").parameters()) < 3e6  # of 11 M


def test_coarser_models_return_their_finest_map() -> None:
    with torch.device("meta"):
        assert Backbone("vit_small_patch32_224").reduction == 32


def test_images_are_normalised_as_the_model_expects() -> None:
    encoder = Backbone("resnet18").eval()
    images = torch.rand(1, 3, 64, 64)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    normalised = (images - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(encoder(images), encoder.model(normalised)[-1])


def test_errors_contain_names_and_sizes() -> None:
    with pytest.raises(ValueError, match=r"'resnet81'.*resnet18"):
        Backbone("resnet81")
    with pytest.raises(ValueError, match=r"'visformer_small' .*features_only"):
        Backbone("visformer_small")
    with pytest.raises(ValueError, match=r"64×64.*64×32"):
        Backbone("vit_tiny_patch16_224", image_size=(32, 64))(torch.rand(1, 3, 64, 64))
    with pytest.raises(ValueError, match=r"64×100.*16.*64×96.*64×112"):
        Backbone("resnet18")(torch.rand(1, 3, 100, 64))
    with pytest.raises(ValueError, match="14"):
        Backbone("eva02_tiny_patch14_224", image_size=(256, 256))
    with pytest.raises(ValueError, match=r"16×16.*16×16"):
        check_size(3, 16, 16)


def test_models_without_the_exact_scale_raise() -> None:
    with torch.device("meta"):
        encoder = Backbone("inception_v3")
        with pytest.raises(ValueError, match=r"14×14.*256×256"):
            encoder(torch.rand(1, 3, 256, 256))


def test_registered_with_timm() -> None:
    assert set(timm.list_models("mobile_former_*")) == set(REGISTERED)
    assert len(REGISTERED) == len(SPECS) == 5
    model = timm.create_model("mobile_former_w720", num_classes=10, in_chans=1).eval()
    images = torch.rand(2, 1, 32, 64)
    features = model.forward_features(images)
    assert features.shape == (2, model.num_features, 2, 4)
    assert model.forward_head(features, pre_logits=True).shape == (2, 720)
    torch.testing.assert_close(model(images), model.forward_head(features))
    assert model(images).shape == (2, 10)
    assert model.default_cfg["input_size"] == (3, 224, 224)
    assert model.get_classifier() is model.head


def test_classifier_is_the_encoder_and_a_linear_layer() -> None:
    with torch.device("meta"):
        model = timm.create_model("mobile_former_w720")
        encoder = MobileFormer("mf-w720")
    sizes = [sum(p.numel() for p in each.parameters()) for each in (model, encoder)]
    assert sizes[0] - sizes[1] == 720 * 1000 + 1000  # the paper's linear probe: 6 M in all
    model.reset_classifier(0)
    assert model.state_dict().keys() == encoder.state_dict().keys()


def test_no_classes_gives_pooled_features_or_the_map() -> None:
    images = torch.rand(1, 3, 32, 32)
    model = timm.create_model("mobile_former_w720", num_classes=0).eval()
    torch.testing.assert_close(model(images), model.forward_features(images).mean((2, 3)))
    model.reset_classifier(0, global_pool="")
    assert model(images).shape == (1, 720, 2, 2)
    with pytest.raises(ValueError, match="'avg'"):
        model.reset_classifier(10, global_pool="")
    with pytest.raises(ValueError, match="'max'"):
        model.reset_classifier(10, global_pool="max")


def test_features_only() -> None:
    images = torch.rand(1, 3, 32, 64)
    model = timm.create_model("mobile_former_w720", features_only=True).eval()
    assert model.feature_info.channels() == [16, 28, 48, 720]
    assert model.feature_info.reduction() == [2, 4, 8, 16]
    assert [tuple(z.shape[1:]) for z in model(images)] == [(16, 16, 32), (28, 8, 16), (48, 4, 8), (720, 2, 4)]
    pruned = timm.create_model("mobile_former_w720", features_only=True, out_indices=(1, 2)).eval()
    assert [tuple(z.shape[1:]) for z in pruned(images)] == [(28, 8, 16), (48, 4, 8)]
    assert len(pruned.model.blocks) == 6
    assert all(torch.isfinite(z).all() for z in pruned(images))


def test_intermediates_follow_timms_indices() -> None:
    model = timm.create_model("mobile_former_w720").eval()
    images = torch.rand(1, 3, 32, 32)
    last, maps = model.forward_intermediates(images)
    assert len(maps) == 4 and last is maps[-1]
    for indices, channels in ((2, [48, 720]), ([0, -2], [16, 48])):
        taken = model.forward_intermediates(images, indices=indices, intermediates_only=True)
        assert [z.shape[1] for z in taken] == channels
    with pytest.raises(ValueError, match="NLC"):
        model.forward_intermediates(images, output_fmt="NLC")

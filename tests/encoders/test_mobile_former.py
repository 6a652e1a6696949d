import copy
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from finola.encoders import build_encoder
from finola.encoders.backbone import Backbone
from finola.encoders.mobile_former import (
    SPECS,
    DyReLU,
    FormerToMobile,
    InvertedBottleneck,
    MobileFormer,
    MobileFormerBlock,
    MobileFormerSpec,
    MobileToFormer,
)
from finola.errors import InputError

TINY = MobileFormerSpec(
    token_dim=16, stem=4, channels=24, stages=(((8, 4),), ((8, 6), (8, 6)), ((12, 8),), ((16, 8), (8, 8)))
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> MobileFormer:
    """Mobile-Former with every type of block and few channels."""
    monkeypatch.setitem(SPECS, "mf-tiny", TINY)
    torch.manual_seed(0)
    return MobileFormer("mf-tiny")


def on_meta(name: str) -> MobileFormer:
    with torch.device("meta"):
        return MobileFormer(name)


@pytest.mark.parametrize(
    ("name", "parameters", "channels"),
    [
        ("mf-w720", 5_024_052, 720),
        ("mf-w1440", 11_987_272, 1440),
        ("mf-w2880", 25_475_344, 2880),
        ("mf-w4320", 43_592_696, 2880),
        ("mf-w5760", 67_613_344, 2880),
    ],
)
def test_sizes(name: str, parameters: int, channels: int) -> None:
    encoder = on_meta(name)
    assert sum(p.numel() for p in encoder.parameters()) == parameters
    assert encoder.channels == encoder.stage_channels[-1] == channels
    assert len(encoder.blocks) == 12
    assert encoder(torch.empty(2, 3, 256, 256, device="meta")).shape == (2, channels, 16, 16)


@pytest.mark.parametrize(("name", "giga"), [("mf-w720", 5.51), ("mf-w1440", 20.24), ("mf-w2880", 77.43)])
def test_multiply_adds_at_800_by_1333(name: str, giga: float) -> None:
    encoder = on_meta(name)
    encoder.reduction = 1  # the paper's size is not a multiple of 16; the strided convolutions round it up
    with FlopCounterMode(display=False) as counter:
        encoder.with_tokens(torch.empty(1, 3, 800, 1333, device="meta"))
    assert round(counter.get_total_flops() / 2e9, 2) == giga


def test_w1440_stage_4_as_read() -> None:
    assert SPECS["mf-w1440"].stages[3] == (
        (576, 176),
        (704, 176),
        (704, 176),
        (1056, 240),
        (1440, 240),
        (1440, 240),
    )


@pytest.mark.parametrize("size", [(16, 16), (48, 80), (256, 64)])
def test_any_multiple_of_sixteen(size: tuple[int, int]) -> None:
    encoder = MobileFormer("mf-w720").eval()
    height, width = size
    images = torch.rand(1, 3, height, width)
    with torch.no_grad():
        maps = encoder.stages(images)
        torch.testing.assert_close(maps[-1], encoder(images))
    shapes = [(c, height // r, width // r) for c, r in zip(encoder.stage_channels, (2, 4, 8, 16), strict=True)]
    assert [tuple(z.shape[1:]) for z in maps] == shapes


def test_other_sizes_raise_with_the_nearest_valid_sizes(tiny: MobileFormer) -> None:
    with pytest.raises(ValueError, match=r"64×250.*16.*64×240.*64×256"):
        tiny(torch.rand(1, 3, 250, 64))


def test_unknown_names_raise_with_similar_names() -> None:
    with pytest.raises(ValueError, match=r"mf-w721.*mf-w720"):
        build_encoder("mf-w721", (256, 256))
    with pytest.raises(ValueError, match=r"resnet81.*resnet18"):
        build_encoder("resnet81", (256, 256))
    with pytest.raises(ValueError, match="mf-w720, mf-w1440"):
        MobileFormer("w720")


def test_build_encoder_gives_mobile_former() -> None:
    with torch.device("meta"):
        encoder = build_encoder("mf-w1440", (256, 256))
    assert isinstance(encoder, MobileFormer) and encoder.channels == 1440


def test_dynamic_relu_reads_the_updated_first_token(tiny: MobileFormer) -> None:
    block = next(block for block in tiny.blocks if isinstance(block, MobileFormerBlock))
    updated: list[Tensor] = []
    read: list[Tensor] = []
    block.former.register_forward_hook(lambda module, inputs, output: updated.append(output))
    for module in block.modules():
        if isinstance(module, DyReLU):
            module.register_forward_hook(lambda module, inputs, output: read.append(inputs[1]))
    _, tokens = block(torch.rand(2, 4, 8, 8), torch.randn(2, 6, 16))
    assert len(read) == 2 and all(each is updated[0] for each in read) and tokens is updated[0]

    activation, x = DyReLU(5, 16), torch.randn(2, 5, 4, 4)
    tokens = torch.randn(2, 6, 16, requires_grad=True)
    nn.init.normal_(activation.slopes[2].weight)
    (gradient,) = torch.autograd.grad(activation(x, tokens).square().sum(), tokens)
    assert gradient[:, 0].abs().sum() > 0 and gradient[:, 1:].abs().sum() == 0


def test_dynamic_relu_starts_as_relu() -> None:
    activation, x = DyReLU(5, 16), torch.randn(2, 5, 4, 4)
    nn.init.zeros_(activation.slopes[2].weight)
    nn.init.zeros_(activation.slopes[2].bias)
    torch.testing.assert_close(activation(x, torch.randn(2, 6, 16)), x.relu())


def test_identity_only_where_in_equals_out() -> None:
    x, tokens = torch.randn(1, 6, 4, 4), torch.randn(1, 6, 16)
    for out, expected in ((6, x), (8, torch.zeros(1, 8, 4, 4))):
        mobile = InvertedBottleneck(6, 12, out, 16)
        nn.init.zeros_(mobile.project[1].weight)
        torch.testing.assert_close(mobile(x, tokens), expected)


def test_attention_by_its_formula() -> None:
    torch.manual_seed(0)
    to_former, to_mobile = MobileToFormer(8, 16).double(), FormerToMobile(8, 16).double()
    z, tokens = torch.randn(2, 8, 3, 5).double(), torch.randn(2, 6, 16).double()
    pixels = z.flatten(2)  # (N, C, HW)

    query = to_former.query(tokens)
    heads = []
    for half in (slice(0, 4), slice(4, 8)):
        weights = (query[..., half] @ pixels[:, half] / 4**0.5).softmax(-1)
        heads.append(weights @ pixels[:, half].transpose(1, 2))
    gate = 2 * ((to_former.gate(tokens) + 3).clamp(0, 6) / 6)
    expected = to_former.norm(tokens + to_former.project(gate * torch.cat(heads, -1)))
    torch.testing.assert_close(to_former(z, tokens), expected)

    key, value = to_mobile.key(tokens), to_mobile.value(tokens)
    heads = []
    for half in (slice(0, 4), slice(4, 8)):
        weights = (pixels[:, half].transpose(1, 2) @ key[..., half].transpose(1, 2) / 4**0.5).softmax(-1)
        heads.append((weights @ value[..., half]).transpose(1, 2))
    torch.testing.assert_close(to_mobile(z, tokens), z + torch.cat(heads, 1).view_as(z))


def test_last_mobile_to_former_only_affects_the_tokens(tiny: MobileFormer) -> None:
    images = torch.rand(2, 3, 32, 48)
    feature_map, tokens = tiny.eval().with_tokens(images)
    assert tokens.shape == (2, 6, 16)
    torch.testing.assert_close(feature_map, tiny(images))
    tiny.train()(images).square().sum().backward()
    assert all((p.grad is not None) == p.requires_grad for p in tiny.parameters())
    frozen = {name.split(".")[0] for name, p in tiny.named_parameters() if not p.requires_grad}
    assert frozen == {"last_mobile_to_former"}


def test_checkpointing_changes_neither_gradients_nor_statistics(tiny: MobileFormer) -> None:
    kept, recomputed = tiny.double(), copy.deepcopy(tiny).double()
    recomputed.set_grad_checkpointing()
    images = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    for encoder in (kept, recomputed):
        encoder(images).square().mean().backward()
    for one, other in zip(kept.parameters(), recomputed.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    torch.testing.assert_close(dict(recomputed.named_buffers()), dict(kept.named_buffers()))


def test_export_with_any_batch_and_size(tiny: MobileFormer) -> None:
    tiny.eval()
    dims = {0: torch.export.Dim("n", max=64)} | {i: 16 * torch.export.Dim(s, max=64) for i, s in ((2, "h"), (3, "w"))}
    exported = torch.export.export(tiny, (torch.rand(2, 3, 32, 48),), dynamic_shapes=(dims,)).module()
    for shape in ((2, 3, 32, 48), (3, 3, 64, 32)):
        images = torch.rand(shape)
        torch.testing.assert_close(exported(images), tiny(images))


def test_channels_last_stays_channels_last(tiny: MobileFormer) -> None:
    images = torch.rand(2, 3, 32, 48)
    out = tiny.eval()(images.contiguous(memory_format=torch.channels_last))
    assert out.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(out, tiny(images))


def test_float64_agrees_with_float32(tiny: MobileFormer) -> None:
    images = torch.rand(2, 3, 32, 32)
    single = tiny.eval()(images)
    double = tiny.double()(images.double())
    assert double.dtype == torch.float64
    torch.testing.assert_close(single.double(), double, rtol=1e-3, atol=1e-4)


def test_bfloat16_and_no_timm_at_import() -> None:
    """Run in a subprocess, because bfloat16 raises SIGILL on some CPUs that report instructions they lack."""
    code = """
import sys, torch
from finola.encoders.mobile_former import MobileFormer
assert "timm" not in sys.modules
encoder, images = MobileFormer("mf-w720").eval(), torch.rand(1, 3, 32, 32)
expected = encoder(images)
with torch.autocast("cpu", torch.bfloat16):
    assert (encoder(images) - expected).abs().mean() < 0.1 * expected.abs().mean()
out = encoder.bfloat16()(images.bfloat16())
assert out.dtype == torch.bfloat16
assert (out - expected).abs().mean() < 0.1 * expected.abs().mean()
"""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    if run.returncode < 0 or run.returncode == 0xC000001D:  # a signal, or an illegal instruction on Windows
        pytest.skip(f"this CPU cannot run bfloat16 (exit code {run.returncode})")
    assert run.returncode == 0, run.stderr


def test_linear_layers_start_as_in_the_author_s_code():
    """N(0, 0.01²) with zero biases; a truncated normal of 0.02 has twice the deviation."""
    torch.manual_seed(0)
    encoder = MobileFormer("mf-w720")
    layers = [module for module in encoder.modules() if isinstance(module, torch.nn.Linear)]
    weights = torch.cat([layer.weight.flatten() for layer in layers])
    assert len(layers) > 50 and weights.std().item() == pytest.approx(0.01, rel=0.01)
    assert weights.abs().max() > 0.04  # not truncated at two deviations of 0.02
    assert not any(layer.bias.any() for layer in layers)


@pytest.mark.parametrize("build", [lambda: MobileFormer("mf-w720"), lambda: Backbone("test_resnet")])
def test_images_in_0_255_raise(build):
    encoder = build().eval()
    for wrong in (torch.full((1, 3, 32, 32), 200.0), torch.full((1, 3, 32, 32), 200, dtype=torch.uint8)):
        for run in (encoder, encoder.stages):
            with pytest.raises(InputError, match="255"):
                run(wrong)

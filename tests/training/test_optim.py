"""Every parameter has the learning rate and weight decay of the recipe."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from training.runs import tiny

import finola
from finola.data import RandomCrop, open_data
from finola.errors import InputError
from finola.heads import Classifier
from finola.recipes.recipe import Recipe
from finola.recipes.sections import GroupSection, OptimiserSection, ScheduleSection
from finola.training.optim import MuonAdamW, build_optimiser, lr_factor, orthogonalised, parameter_groups, peak_lr

WAVES = "waves+conv/32x1@4:16"


def rates_by_name(model: torch.nn.Module, groups: list[dict]) -> dict[str, float]:
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    return {name: rates[id(p)] for name, p in model.named_parameters() if p.requires_grad}


def test_learning_rate_scales_with_the_batch_size() -> None:
    assert peak_lr(Recipe()) == 1.5e-4 * 128 / 256
    assert peak_lr(tiny("optimiser.lr=3e-4")) == 3e-4


PIXEL_LAYERS = ("to_pixels", "on_pixels.3")  # output layers, added to pixels


def test_wave_models_use_low_learning_rates_for_waves_and_high_ones_for_refinements() -> None:
    model = finola.create(WAVES)
    rates = rates_by_name(model, build_optimiser(model, tiny()).param_groups)
    assert len(rates) == sum(p.requires_grad for p in model.parameters())
    slow = {name: rate for name, rate in rates.items() if rate not in (1e-3, 0.02)}
    assert all("refinement" in name for name in rates.keys() - slow.keys())
    assert slow == {
        **dict.fromkeys(["transition.A", "transition.B", "transition.A_minus", "transition.B_minus"], 5e-6),
        **dict.fromkeys(["decoder.read_out.linear.weight", "decoder.read_out.linear.bias"], 5e-6),
        **dict.fromkeys([f"encoder.analysis.{colour}" for colour in range(3)], 2e-8),
        **dict.fromkeys(["encoder.refinement.last.weight", "encoder.refinement.last.bias"], 3e-6),
        **{f"decoder.refinement.{layer}.{kind}": 1e-4 for layer in PIXEL_LAYERS for kind in ("weight", "bias")},
    }


@pytest.mark.parametrize("name", [WAVES, "waves+conv/128x1@8:32"])
def test_first_step_preserves_the_wave_initialisation(name: str) -> None:
    """Adam's first step changes every parameter by its learning rate, here reduced to a tenth by the warm-up."""
    recipe = tiny(f"model.name={name}")
    model = finola.create(name)
    dataset = open_data("smoke", transform=RandomCrop(model.config.image_size))
    images = torch.stack([dataset.sample(index)[0] for index in range(32)]) / 255
    before = F.mse_loss(model(images), images)
    before.backward()
    optimiser = build_optimiser(model, recipe)
    for group in optimiser.param_groups:
        group["lr"] /= 10
    optimiser.step()
    assert F.mse_loss(model(images), images) < 1.05 * before


def test_muon_optimises_only_matrices_of_refinements() -> None:
    model = finola.create(WAVES)
    groups = build_optimiser(model, tiny()).param_groups
    by_muon = {id(p) for group in groups if group.get("muon") for p in group["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in by_muon}
    assert names and all("refinement" in name and name.endswith("weight") for name in names)
    assert not any("last" in name or layer in name for name in names for layer in PIXEL_LAYERS)


def test_muon_update_is_orthogonal_and_independent_of_the_gradient_scale() -> None:
    steps = []
    for scale in (1.0, 1e-9):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.zeros(6, 4, 3, 3))
        optimiser = MuonAdamW(
            [{"params": [weight], "lr": 0.1, "weight_decay": 0.0, "muon": True, "name": "a"}],
            betas=(0.9, 0.999),
            eps=1e-8,
        )
        weight.grad = scale * torch.randn(6, 4, 3, 3)
        optimiser.step()
        steps.append(weight.detach().flatten(1))
    assert torch.allclose(steps[0], steps[1], atol=1e-5)
    assert 0.06 < torch.linalg.svdvals(steps[0]).min() <= torch.linalg.svdvals(steps[0]).max() < 0.13


def test_sections_with_muon_leave_vectors_to_later_ones() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    section = OptimiserSection(groups={"all": GroupSection(match=["*"], lr=0.02, muon=True)})
    groups = {group["name"].partition("/")[0]: group for group in parameter_groups(model, section, lr=0.1)}
    assert [p.ndim for p in groups["all"]["params"]] == [2] and groups["all"]["muon"]
    assert {p.ndim for p in groups["common"]["params"]} == {1} and groups["common"]["lr"] == 0.1


def test_groups_without_muon_use_adamw() -> None:
    plain, both = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    matrix = torch.nn.Parameter(torch.ones(2, 2))
    settings = {"lr": 0.1, "weight_decay": 0.1, "name": "a"}
    adamw = torch.optim.AdamW([{"params": [plain], "lr": 0.1, "weight_decay": 0.1}])
    muon = MuonAdamW(
        [{"params": [both], **settings}, {"params": [matrix], "muon": True, **settings}], betas=(0.9, 0.999), eps=1e-8
    )
    for _ in range(3):
        plain.grad, both.grad, matrix.grad = torch.arange(3.0), torch.arange(3.0), torch.eye(2)
        adamw.step()
        muon.step()
    assert torch.equal(plain, both)


@pytest.mark.parametrize("decay", [0.9, 0.85])
def test_layer_decay_lowers_the_learning_rate_from_layer_to_layer(decay: float) -> None:
    model = Classifier("mf-w720", "tran-1", 10, 64, frozen=False)
    rates = rates_by_name(model, parameter_groups(model, OptimiserSection(layer_decay=decay), lr=1.0))
    depth = len(model.encoder.blocks) + 2  # stem, blocks, last convolution
    for name, rate in rates.items():
        part, _, rest = name.removeprefix("encoder.").partition(".")
        below_head = {"stem": depth, "tokens": depth, "last_conv": 1, "head": 0}.get(part)
        if part == "blocks":
            below_head = depth - 1 - int(rest.split(".")[0])
        assert below_head is not None and rate == pytest.approx(decay**below_head), name
    assert rates["head.linear.weight"] == 1.0


def test_multiplier_scales_the_common_learning_rate_and_the_first_match_wins() -> None:
    first, second = GroupSection(["transition.A*"], lr_multiplier=0.1), GroupSection(["transition.*"], lr=1.0)
    section = OptimiserSection(groups={"first": first, "second": second})
    model = finola.create(WAVES)
    rates = rates_by_name(model, parameter_groups(model, section, lr=1e-2))
    assert rates["transition.A"] == rates["transition.A_minus"] == pytest.approx(1e-3)
    assert rates["transition.B"] == 1.0 and rates["encoder.analysis.0"] == 1e-2


def test_weight_decay_can_exclude_norms_and_biases() -> None:
    model = finola.create("mf-w720/16x1@4:32")
    decays = lambda section: {  # noqa: E731
        name: group["weight_decay"]
        for group in parameter_groups(model, section, 1e-3)
        for name, p in model.named_parameters()
        if any(p is q for q in group["params"])
    }
    assert set(decays(OptimiserSection()).values()) == {0.1}
    selective = decays(OptimiserSection(decay_norms_and_biases=False))
    assert {name for name, decay in selective.items() if decay == 0.0} == {
        name for name, p in model.named_parameters() if p.ndim < 2 and p.requires_grad
    }


def test_frozen_parameters_are_not_optimised() -> None:
    model = finola.create("mf-w720/16x1@4:32", "waves")
    groups = parameter_groups(model, OptimiserSection(), 1e-3)
    taken = {id(p) for group in groups for p in group["params"]}
    assert not taken & {id(p) for p in model.wave_encoder.parameters()}
    assert len(taken) == sum(p.requires_grad for p in model.parameters())


def test_group_without_parameters_is_rejected() -> None:
    with pytest.raises(InputError, match=r"groups\.mine \(transitions\.\*\).*transition\."):
        build_optimiser(finola.create(WAVES), tiny("optimiser.groups.mine={match: [transitions.*]}"))


def test_warm_up_is_linear_and_cosine_ends_at_the_final_fraction() -> None:
    factor = lr_factor(ScheduleSection(epochs=10, warmup_epochs=1, final_lr_fraction=0.02), steps_per_epoch=100)
    assert [factor(step) for step in (0, 49, 99)] == pytest.approx([0.01, 0.5, 1.0])
    assert factor(100) == 1.0
    assert factor(550) == pytest.approx(0.02 + 0.98 * 0.5)
    assert factor(1000) == pytest.approx(0.02)
    assert factor(775) == pytest.approx(0.02 + 0.98 * 0.5 * (1 + math.cos(0.75 * math.pi)))
    assert all(factor(step) > factor(step + 1) for step in range(100, 999))


def test_time_schedule_follows_the_clock() -> None:
    factor = lr_factor(ScheduleSection(warmup_epochs=2, clock="time"), 1)
    assert factor(0) == 0.5
    assert [factor(10, share) for share in (0.0, 0.5, 1.0, 1.2)] == pytest.approx([1.0, 0.5, 0.0, 0.0])


@pytest.mark.parametrize("scale", [1e-16, 1e-18, 1e-25, 0.0])
def test_muon_steps_are_finite_for_vanishing_gradients(scale: float) -> None:
    matrix = torch.randn(48, 200, generator=torch.Generator().manual_seed(0))
    expected = orthogonalised(matrix) if scale else torch.zeros_like(matrix)
    torch.testing.assert_close(orthogonalised(scale * matrix), expected, atol=1e-3, rtol=0.0)

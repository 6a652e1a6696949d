"""Probing, fine-tuning and MoCo: classes from the data, encoders from any trained model, heads from a probe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from training.runs import COMMON, loss_curve, start, weights

from finola.data import Batch
from finola.data.transforms import erase, mix
from finola.errors import InputError
from finola.heads import Classifier, ranks
from finola.hub import bundled_models
from finola.model_zoo import load_encoder
from finola.recipes.loading import list_recipes
from finola.training import load_recipe, train
from finola.training.data import per_pass
from finola.training.optim import peak_lr
from finola.training.tasks.base import build_task

OWN = (
    *COMMON,
    "model.name=test_resnet",
    "model.weights=null",
    "data.size=32",
    "data.limit=null",
    "data.val_limit=null",
    "data.batch_size=6",
    "data.flip=false",
    "optimiser.kind=adamw",
    "optimiser.lr=3e-3",
    "optimiser.weight_decay=0.0",
    "schedule.warmup_epochs=0.5",
)


@pytest.fixture(scope="module")
def colours(tmp_path_factory) -> Path:
    """Three classes that differ by colour, in train/ and val/."""
    root = tmp_path_factory.mktemp("colours")
    random = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 4)):
        for channel, name in enumerate(("blue", "green", "red")[::-1]):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 80, (40, 48, 3), dtype=np.uint8)
                pixels[..., channel] += 150
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


def recipe(data: Path, *overrides: str, base: str = "probe/lin-w720-128") -> Any:
    return load_recipe(base, [*OWN, f"data.path={data}", *overrides])


MOCO = ("moco.queue_size=32", "moco.projection_dim=16", "moco.norm_batch_size=3")


def contrastive(data: Path, *overrides: str) -> Any:
    return recipe(data, *MOCO, *overrides, base="moco/w720-128")


def test_classifier_learns_the_classes_of_the_data(colours: Path, tmp_path: Path) -> None:
    trained = recipe(colours, "head.kind=tran-1", "head.frozen=false", "schedule.epochs=5")
    outcome = train(trained, tmp_path / "run", quiet=True)
    assert outcome.status == "finished" and outcome.best["accuracy"] > 0.9
    model = Classifier.from_pretrained(outcome.model).eval()
    assert model.classes == ["blue", "green", "red"]
    red = torch.tensor([0.8, 0.1, 0.1])[:, None, None].expand(3, 32, 32)
    assert model.rank(red, 1)[0][0] == "red"
    card = (Path(outcome.model) / "README.md").read_text()
    assert "blue, green, red" in card and str(colours) not in card


def test_probe_keeps_its_encoder_and_its_head_initialises_fine_tuning(
    colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = train(recipe(colours, "head.frozen=false", "trainer.max_steps=3"), tmp_path / "source", quiet=True).model
    words = (f"model.weights={source}", "head.kind=tran-1")
    probe = train(recipe(colours, *words, "trainer.max_steps=3"), tmp_path / "probe", quiet=True).model
    before, after = load_encoder(source).state_dict(), load_encoder(probe).state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())

    fine = recipe(colours, f"model.weights={probe}", "head.kind=tran-1", "head.frozen=false")
    fine.classes = ["blue", "green", "red"]
    capsys.readouterr()
    begun, probed = build_task(fine).model.state_dict(), Classifier.from_pretrained(probe).state_dict()
    assert all(torch.equal(value, begun[key]) for key, value in probed.items())
    assert capsys.readouterr().err == ""
    other = recipe(colours, f"model.weights={probe}", "head.kind=lin", "head.frozen=false")
    other.classes = fine.classes
    assert build_task(other).model.head.linear.weight.shape == (3, load_encoder(probe).channels)
    reported = capsys.readouterr().err
    assert "tran-1 for 3 classes" in reported and "lin for 3 classes" in reported
    fine.classes = ["ant", "bee", "cat"]  # as many, but others: their head is new
    begun = build_task(fine).model.state_dict()
    assert all(torch.equal(value, begun[key]) for key, value in probed.items() if key.startswith("encoder."))
    assert not torch.equal(begun["head.linear.weight"], probed["head.linear.weight"])


def test_resumed_run_repeats_augmentation_and_mixing(colours: Path, tmp_path: Path) -> None:
    words = (
        "head.frozen=false",
        "data.augment=rand-m9-mstd0.5",
        "head.mixup=0.5",
        "head.cutmix=1.0",
        "head.random_erasing=0.5",
    )
    train(recipe(colours, *words, "trainer.max_steps=6"), tmp_path / "whole", quiet=True)
    train(recipe(colours, *words, "trainer.max_steps=2"), tmp_path / "parts", quiet=True)
    train(recipe(colours, *words, "trainer.max_steps=6"), tmp_path / "parts", resume=True, quiet=True)
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(value, parts[key]) for key, value in whole.items())


def test_moco_resumes_with_its_queue_and_exports_its_encoder(colours: Path, tmp_path: Path) -> None:
    whole = train(contrastive(colours, "trainer.max_steps=6"), tmp_path / "whole", quiet=True)
    train(contrastive(colours, "trainer.max_steps=2"), tmp_path / "parts", quiet=True)
    train(contrastive(colours, "trainer.max_steps=6"), tmp_path / "parts", resume=True, quiet=True)
    first, second = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(value, second[key]) for key, value in first.items())
    slow = [key for key in first if ".slow.0." in key and key.endswith("weight")]
    assert any(not torch.equal(first[key], first[key.replace("slow.0", "encoder")]) for key in slow)
    assert load_encoder(whole.model)(torch.rand(1, 3, 32, 32)).ndim == 4
    given = load_encoder(whole.model).state_dict()
    begun = build_task(contrastive(colours, f"model.weights={whole.model}")).model.state_dict()
    for part in ("encoder.", "slow.0."):
        assert all(torch.equal(value, begun[part + key]) for key, value in given.items())


def test_moco_in_two_processes_matches_one_process(colours: Path, tmp_path: Path) -> None:
    """Equal batch-norm groups, keys from all processes in one queue, and gradients of the joint batch."""
    words = (f"data.path={colours}", *MOCO, "trainer.max_steps=5")
    words_for_two = (*words, "trainer.devices=2")  # 3 photos each
    process = start(tmp_path / "two", *words_for_two, recipe="moco/w720-128", settings=OWN)
    train(recipe(colours, *words, base="moco/w720-128"), tmp_path / "one", quiet=True)  # 6 photos
    _, printed = process.communicate(timeout=600)
    assert process.returncode == 0, printed
    one, two = loss_curve(tmp_path / "one"), loss_curve(tmp_path / "two")
    assert list(one) == list(two) == list(range(1, 6))
    assert two == pytest.approx(one, rel=1e-3)
    queues = [weights(tmp_path / name)["queue"] for name in ("one", "two")]
    assert torch.allclose(*queues, atol=1e-3) and weights(tmp_path / "two")["position"] == 30


def test_moco_has_the_published_settings() -> None:
    found = load_recipe("moco/w2880")
    assert peak_lr(found) == 0.03 and found.data.batch_size == 256
    assert found.images_per_step == 512 and found.moco.norm_batch_size == 32
    assert per_pass(found, processes=8) == 64
    with pytest.raises(InputError, match="multiple of 512"):
        per_pass(found, processes=16)
    with pytest.raises(InputError, match="sync_batchnorm=false"):
        load_recipe("moco/w720", ["trainer.sync_batchnorm=true"])


def test_moco_groups_of_queries_and_keys_differ(colours: Path) -> None:
    """Every group of keys has photos of several groups of queries, so statistics do not identify a pair."""
    task = build_task(contrastive(colours))
    groups: dict[str, list[list[float]]] = {"queries": [], "keys": []}

    def record(name: str, images: torch.Tensor) -> torch.Tensor:
        groups[name].append(images.mean((1, 2, 3)).tolist())
        return torch.nn.functional.normalize(images.mean((2, 3)) @ torch.randn(3, 16), dim=1)

    task.model.forward = lambda images: record("queries", images)
    task.model.keys = lambda images: record("keys", images)
    photos = torch.arange(9.0).repeat_interleave(2)[:, None, None, None].expand(18, 3, 4, 4)
    none = torch.zeros(18, dtype=torch.int64)
    task.losses(photos, Batch(photos, none, none, none.bool()))
    assert groups == {
        "queries": [[0, 1, 2], [3, 4, 5], [6, 7, 8]],
        "keys": [[0, 3, 6], [1, 4, 7], [2, 5, 8]],
    }
    assert int(task.position) == 9


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("data.path=smoke",), "labels"),
        (("model.name=''", "model.weights=null"), "model.name=mf-w720"),
        (("data.size=null",), "data.size=224"),
        (("model.weights=nowhere",), "'nowhere'"),
        (("head.kind=tran-9",), "lin, tran-1, tran-4"),
        (("data.augment=strong",), "'strong'"),
        (("optimiser.layer_decay=0.9", "head.frozen=false"), "optimiser.layer_decay is 0.9"),
    ],
)
def test_invalid_training_setups_are_rejected(colours: Path, tmp_path: Path, overrides, message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        train(recipe(colours, *overrides), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "last.ckpt").exists()


def test_moco_needs_two_views_per_photo(colours: Path) -> None:
    with pytest.raises(InputError, match=r"data\.crops_per_image=2"):
        contrastive(colours, "data.crops_per_image=1")


def test_mixed_labels_match_mixed_images() -> None:
    torch.manual_seed(0)
    images, labels = torch.eye(4)[:, :3, None, None].expand(4, 3, 16, 16), torch.tensor([0, 1, 2, 3])
    for amounts in ((0.8, 0.0), (0.0, 1.0)):
        mixed, shares = mix(images, labels, 4, *amounts)
        assert torch.allclose(mixed.mean((2, 3)), shares[:, :3], atol=1e-5)
    assert torch.equal(erase(images, 0.0), images) and not torch.equal(erase(images, 1.0), images)


def test_ranks_count_classes_with_higher_scores() -> None:
    logits = torch.randn(20, 7)
    labels = torch.randint(7, (20,))
    expected = [
        (row.argsort(descending=True) == label).nonzero().item() for row, label in zip(logits, labels, strict=True)
    ]
    assert ranks(logits, labels).tolist() == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("probe/lin-w2880", {"kind": "sgd", "lr": 0.1, "decay": 0.0, "epochs": 90, "batch": 4096}),
        ("probe/tran1-w720", {"kind": "adamw", "lr": 5e-4, "decay": 0.1, "epochs": 200, "batch": 4096}),
        ("finetune/w720", {"kind": "adamw", "lr": 5e-4, "decay": 0.05, "epochs": 200, "batch": 512}),
        ("finetune/w1440", {"kind": "adamw", "lr": 5e-4, "decay": 0.05, "epochs": 150, "batch": 512}),
        ("finetune/w2880", {"kind": "adamw", "lr": 5e-4, "decay": 0.05, "epochs": 100, "batch": 512}),
    ],
)
def test_recipes_have_the_paper_s_settings(name: str, expected: dict) -> None:
    found = load_recipe(name)
    assert {
        "kind": found.optimiser.kind,
        "lr": found.optimiser.base_lr,
        "decay": found.optimiser.weight_decay,
        "epochs": found.schedule.epochs,
        "batch": found.data.batch_size,
    } == expected


def test_regularisation_grows_with_the_encoder_as_in_the_paper() -> None:
    heads = {width: load_recipe(f"finetune/w{width}") for width in (720, 1440, 2880)}
    assert [r.head.mixup for r in heads.values()] == [0, 0.2, 0.8]
    assert [r.head.cutmix for r in heads.values()] == [0, 0.25, 1.0]
    assert [r.optimiser.layer_decay for r in heads.values()] == [0.9, 0.9, 0.85]
    probes = [load_recipe(f"probe/tran1-w{width}").head for width in heads]
    assert [head.dropout for head in probes] == [0.1, 0.2, 0.2] and [head.random_erasing for head in probes] == [
        0,
        0,
        0.25,
    ]


def test_every_probe_of_the_paper_is_a_recipe() -> None:
    names = set(list_recipes())
    assert {
        f"probe/finola-q{size}-{head}" for size in (64, 128, 256, 512, 1024, 2048, 3072) for head in ("lin", "tran1")
    } <= names
    lengths = (100, 200, 400, 800)
    assert {f"masked/{variant}-w2880-{epochs}" for variant in "eb" for epochs in lengths} <= names
    assert {f"masked/b-w{width}-{epochs}" for width in (720, 1440) for epochs in lengths} <= names
    assert {f"probe/{source}-{head}" for source in ("e-w2880", "moco-w720") for head in ("lin", "tran1")} <= names


def test_weights_of_a_recipe_are_those_of_another_recipe() -> None:
    """Every chain of pre-training, probing and fine-tuning can be run from its first recipe to its last."""
    names = list_recipes()
    runs = {f"runs/{name.replace('/', '-')}/model" for name in names} | {None, *bundled_models()}
    chained = [name for name in names if name.startswith(("probe/", "finetune/", "detection/", "masked/"))]
    assert {name: found for name in chained if (found := load_recipe(name).model.weights) not in runs} == {}


@pytest.mark.parametrize("width", [720, 1440, 2880])
def test_fine_tuning_has_the_head_of_its_probe(width: int) -> None:
    for name, probe in (
        (f"finetune/w{width}", f"probe/tran1-w{width}"),
        (f"finetune/tran4-w{width}", f"probe/tran4-w{width}"),
    ):
        fine, probed = load_recipe(name), load_recipe(probe)
        assert fine.head.kind == probed.head.kind and fine.model.name == probed.model.name
        assert fine.model.weights == f"runs/{probe.replace('/', '-')}/model"


def test_decoder_depths_differ_in_the_decoder_only() -> None:
    depths = [load_recipe(f"masked/b-w2880-tran{blocks}") for blocks in range(1, 7)]
    assert [recipe.model.name for recipe in depths] == [f"mf-w2880/512x1@16+tran{blocks}" for blocks in range(1, 7)]
    assert {recipe.schedule.epochs for recipe in depths} == {800}

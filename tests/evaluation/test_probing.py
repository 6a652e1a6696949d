"""Probes on kept features find what is there to be found, and nothing else."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

from finola.cli import main
from finola.config import HEADS
from finola.encoders import build_encoder
from finola.evaluation.probing import PROBES, RECIPES, Features, accuracy, extract, head_recipe, knn, train_head
from finola.heads import Classifier
from finola.training import load_recipe


def features(seed: int, count: int, signal: float) -> Features:
    """Noise with a direction per class, `signal` strong."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=random)
    directions = torch.randn(4, 12, generator=torch.Generator().manual_seed(99))
    maps = torch.randn(1, count, 12, 2, 2, generator=random) + signal * directions[labels][None, :, :, None, None]
    return Features(maps.half(), labels, list("abcd"))


@pytest.mark.parametrize("kind", ["knn", "lin", "tran-1"])
def test_a_probe_finds_a_class_that_is_there(kind: str) -> None:
    train, test = features(0, 600, 2.0), features(1, 200, 2.0)
    assert (knn(train, test) if kind == "knn" else accuracy(train_head(head_recipe(kind, epochs=8), train), test)) > 0.9


@pytest.mark.parametrize("kind", ["knn", "lin"])
def test_a_probe_finds_nothing_in_noise(kind: str) -> None:
    train, test = features(0, 600, 0.0), features(1, 400, 0.0)
    assert (knn(train, test) if kind == "knn" else accuracy(train_head(head_recipe(kind, epochs=8), train), test)) < 0.4


@pytest.mark.parametrize("kind", RECIPES)
def test_a_probe_has_the_settings_of_its_recipe(kind: str) -> None:
    """`finola probe` and `finola train probe/…` train the same head with the same optimiser and schedule."""
    recipe, probe = load_recipe(RECIPES[kind]), head_recipe(kind)
    assert probe.head.kind == kind and set(PROBES) == {"knn", *HEADS["classify"]}
    assert (probe.optimiser, probe.schedule, probe.data) == (recipe.optimiser, recipe.schedule, recipe.data)


def test_k_nn_is_a_weighted_vote_over_cosine_similarities() -> None:
    train, test = features(0, 60, 0.7), features(1, 30, 0.7)
    base, query = train.means[0], test.means[0]
    keys, queries = (F.normalize((m - base.mean(0)) / (base.std(0) + 1e-6), dim=1) for m in (base, query))
    right = 0
    for vector, label in zip(queries, test.labels, strict=True):
        order = sorted(range(60), key=lambda i: -float(vector @ keys[i]))[:7]
        votes = [sum(float((vector @ keys[i] / 0.07).exp()) for i in order if train.labels[i] == c) for c in range(4)]
        right += max(range(4), key=votes.__getitem__) == int(label)
    assert knn(train, test, neighbours=7) == right / 30


def test_features_are_those_of_the_encoder_both_ways_round(colour_folders) -> None:
    encoder = build_encoder("test_resnet", (32, 32))
    found = extract(encoder, str(colour_folders), "train", 32, mirrored=True)
    assert found.classes == ["blue", "red"] and found.maps.shape[:2] == (2, len(found.labels))
    assert not torch.equal(found.maps[0], found.maps[1])
    assert encoder.training


def test_the_verbs_probe_and_classify(colour_folders, tmp_path, capsys) -> None:
    assert main(["probe", "test_resnet", str(colour_folders), "--size", "32", "--epochs", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["classes"] == 2 and set(found["accuracy"]) == {"knn", "lin"}
    Classifier("test_resnet", "lin", ["blue", "red"], 32).eval().save_pretrained(tmp_path / "classifier")
    photo = next(colour_folders.rglob("*.png"))
    assert main(["classify", str(photo), "--model", str(tmp_path / "classifier"), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["photos"]
    assert sum(entry["probability"] for entry in row["classes"]) == pytest.approx(1, abs=1e-5) and row["photo"] == str(
        photo
    )
    (tmp_path / "broken.png").write_bytes(b"no photo")
    assert (
        main(["classify", str(tmp_path / "broken.png"), "skimage:astronaut", "-m", str(tmp_path / "classifier")]) == 2
    )
    said = capsys.readouterr()
    assert "broken.png" in said.err and "astronaut" in said.out


def test_bundled_classifier_ranks_its_classes(capsys) -> None:
    assert main(["classify", "skimage:astronaut", "-m", "masked-b-w720", "--top", "10", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["photos"]
    assert "parachute" in {entry["class"] for entry in row["classes"]} and len(row["classes"]) == 10
    shares = [entry["probability"] for entry in row["classes"]]
    assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(1, abs=1e-5)


@pytest.fixture
def colour_folders(tmp_path):
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    for split in ("train", "val"):
        for channel, name in ((2, "blue"), (0, "red")):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for number in range(6):
                pixels = random.integers(0, 90, (36, 40, 3), dtype=np.uint8)
                pixels[..., channel] += 120
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "photos"

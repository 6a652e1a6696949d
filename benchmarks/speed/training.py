"""Training speed of a recipe, cost of data loading, and memory by map size."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor

from finola.autoencoder import Autoencoder
from finola.config import ModelConfig
from finola.data import Batch
from finola.recipes.recipe import Recipe, ReconstructionRecipe
from finola.recipes.sections import LossSection
from finola.training.devices import build_fabric, seed_all
from finola.training.optim import build_optimiser
from finola.training.tasks.base import Task, build_task, task_class
from speed.machine import fit_line, flops, gemm_rate, peak_memory, synchronise, timed
from speed.roofline import bounds

MAPS = 4  # sizes of the map that memory is measured at
ROUNDS = 5
COUNTS = (24, 32)  # images: enough that they, not the weights' gradients, make the peak


def bench_training(recipe: Recipe, steps: int = 8) -> dict[str, Any]:
    """All measurements of training with a recipe; `steps` of each kind in every round."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    seed_all(recipe.seed)
    recipe, photos = task_class(recipe).open(recipe)
    task = build_task(recipe).to(device)
    step = stepper(task, recipe)
    photos.open_loaders(build_fabric(recipe.trainer))
    loader = photos.train_loader
    batches = endless(loader, device)
    fixed = next(batches)
    batches.close()  # its workers would take their share of the cores
    rows, channels = product_shape(task, fixed.images)
    alone, rate = step_and_gemm(lambda: step(fixed), rows, channels, device)
    loading = loading_share(step, endless(loader, device), fixed, steps, device)
    work = flops(lambda: step(fixed))
    images = len(fixed.images)
    speed = images / alone
    return {
        "recipe": recipe.name,
        "model": recipe.model.name,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "images_per_step": images,
        "images_per_second": speed,
        "images_per_second_with_loading": images / loading["loaded_step_seconds"],
        "flops_per_image": work // images,
        "gemm_flops_per_second": rate,
        "share_of_gemm": speed * work / images / rate,
        "loading": loading | {"workers": loader.num_workers, "photos": len(photos.train)},
        "bounds": bounds(lambda: step(fixed), alone, rate, device),
        "memory": memory_by_area(recipe, device) if hasattr(task.model, "propagate") else None,
    }


def product_shape(task: Task, images: Tensor) -> tuple[int, int]:
    """Rows and channels of the largest product that the recurrence allows; without one, of the encoder's last map."""
    model: Any = task.model
    if isinstance(model, Autoencoder):
        config = model.config
        tiles = images[0, 0].numel() // (config.image_size[0] * config.image_size[1]) * len(images)
        return max(1, tiles) * config.paths * config.map_size[1], config.channels
    positions = images[0, 0].numel() // model.encoder.reduction**2
    return len(images) * positions, int(model.encoder.channels)


def stepper(task: Task, recipe: Recipe) -> Callable[[Batch], None]:
    """One whole optimisation step."""
    optimiser = build_optimiser(task.model, recipe)

    def step(batch: Batch) -> None:
        optimiser.zero_grad()
        torch.stack(list(task.losses(batch.images, batch).values())).sum().backward()
        optimiser.step()

    return step


def endless(loader: Any, device: torch.device) -> Generator[Batch]:
    """Batches as training meets them, epoch after epoch."""
    epoch = 0
    while True:
        loader.set_epoch(epoch)
        for batch in loader:
            batch = move_data_to_device(batch, device)  # labels and boxes travel too
            yield batch._replace(images=batch.images.float().div_(255))
        epoch += 1


def step_and_gemm(step: Callable[[], None], rows: int, channels: int, device: torch.device) -> tuple[float, float]:
    """Seconds of a step with nothing beside it, and the GEMM rate measured in turns with it: medians."""
    seconds: list[float] = []
    rates: list[float] = []
    for _ in range(2):
        step()
    for _ in range(ROUNDS):
        rates.append(gemm_rate(device, rows, channels, repeats=20))
        seconds.extend(timed(step, device) for _ in range(3))
    return statistics.median(seconds), statistics.median(rates)


def loading_share(
    step: Callable[[Batch], None], batches: Iterator[Batch], fixed: Batch, steps: int, device: torch.device
) -> dict[str, float]:
    """Steps on loaded batches against steps on one batch in memory, in turns, so that both see the same machine.

    `share` is what loading adds to a step, workers' use of the cores included; `wait_share` is the time spent waiting.
    """
    loaded, plain, waited = [], [], []
    for _ in range(ROUNDS):
        plain.append(statistics.fmean(timed(lambda: step(fixed), device) for _ in range(steps)))
        wait, begin = 0.0, time.perf_counter()
        for _ in range(steps):
            asked = time.perf_counter()
            batch = next(batches)
            wait += time.perf_counter() - asked
            step(batch)
            synchronise(device)
        loaded.append((time.perf_counter() - begin) / steps)
        waited.append(wait / steps)
    with_loading, without = statistics.median(loaded), statistics.median(plain)
    return {
        "step_seconds": without,
        "loaded_step_seconds": with_loading,
        "share": max(0.0, 1 - without / with_loading),
        "wait_share": statistics.median(waited) / with_loading,
    }


def memory_by_area(recipe: Recipe, device: torch.device) -> dict[str, Any]:
    """Peak bytes per image at several map sizes, of a whole training step and of propagation alone, and their lines."""
    config = ModelConfig.parse(recipe.model.name)
    rows: list[dict[str, int]] = []
    for side in map_sides(config):
        name = str(replace(config, map_size=(side, side), start=_start(config)))
        plain = replace(recipe, model=replace(recipe.model, name=name, weights=None))
        if isinstance(plain, ReconstructionRecipe):
            plain = replace(plain, loss=LossSection())
        task = build_task(plain).to(device)
        row = {"map": side, "area": side * side}
        for what, work in (("step", _step_of), ("propagation", _propagation_of)):
            few, more = (peak_memory(work(task, count, device)) for count in COUNTS)
            row[what] = (more - few) // (COUNTS[1] - COUNTS[0])
            task.zero_grad()
        rows.append(row)
    lines = {}
    for what in ("step", "propagation"):
        slope, constant, r_squared = fit_line([r["area"] for r in rows], [r[what] for r in rows])
        lines[what] = {"bytes_per_position": slope, "bytes_constant": constant, "r_squared": r_squared}
    return {"bytes_per_image": rows, "lines": lines}


def map_sides(config: ModelConfig) -> list[int]:
    """Square maps around the model's own that divide its image."""
    height, width = config.image_size
    sides = [1 << power for power in range(1, 10) if height % (1 << power) == 0 and width % (1 << power) == 0]
    own = min(range(len(sides)), key=lambda index: abs(sides[index] - config.map_size[0]))
    first = max(0, min(own - 1, len(sides) - MAPS))
    return sides[first : first + MAPS]


def _start(config: ModelConfig) -> Any:
    return config.start if isinstance(config.start, str) else "center"  # a cell of one map need not lie in another


def _step_of(task: Task, count: int, device: torch.device) -> Callable[[], None]:
    model: Any = task.model
    images: Tensor = torch.rand(count, 3, *model.config.image_size, device=device)
    none = torch.zeros(count, dtype=torch.int64)
    batch = Batch(images, none, none, none.bool())
    return lambda: torch.stack(list(task.losses(images, batch).values())).sum().backward()


def _propagation_of(task: Task, count: int, device: torch.device) -> Callable[[], None]:
    model: Any = task.model
    q = torch.randn(count, model.config.paths, model.config.channels, device=device, requires_grad=True)
    return lambda: model.propagate(q).sum().backward()

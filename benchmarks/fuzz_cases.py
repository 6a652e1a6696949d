"""Cases of `fuzz_readers.py`: valid samples, and one function a reader that damages one and reads it."""

from __future__ import annotations

import io
import json
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mutations
from mutations import mutate_bytes, mutate_json, mutate_safetensors, mutate_tar, mutate_tree, odd_value


class Samples:
    """One valid file of every kind, made when a reader first asks for it; `folder` is where a model is saved."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: dict[str, Any] = {}

    def make_all(self) -> None:
        for name in ("containers", "models", "recipe", "photos", "coco", "embeddings", "compressed", "exported"):
            self.get(name)

    def get(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = getattr(self, f"_{name}")()
        return self._made[name]

    def _containers(self) -> list[bytes]:
        """A file of each version of the format."""
        import torch

        from finola.codec.codec import compress

        y, x = torch.meshgrid(torch.arange(70), torch.arange(90), indexing="ij")
        image = torch.stack([(3 * x + y) % 256, (x * x // 40 + 2 * y) % 256, 255 - x - y]).to(torch.uint8)
        return [compress(image, quality=40, model=model).data for model in ("waves512", "tile32")]

    def _models(self) -> list[dict[str, bytes]]:
        """The files of two small codecs, of fixed and of elastic length: config.json and both safetensors."""
        import torch

        import finola
        from finola.codec.calibration import FILE, calibrate
        from finola.codec.elastic_calibration import calibrate_elastic
        from finola.latents import CodebookSpace
        from finola.photos import Pixels, analyse

        torch.manual_seed(0)
        photo = torch.rand(3, 64, 64)
        fixed, elastic = (finola.create(name).eval() for name in ("waves/32x1@4:16", "waves+nets/32x1@4:16+elastic2"))
        ((p,),) = analyse(CodebookSpace(elastic, filtered=False), Pixels(photo))
        calibrations = {
            "fixed": (fixed, calibrate(fixed, [torch.rand(64, 3, 16, 16)])),
            "elastic": (elastic, calibrate_elastic(elastic, [(p, 4)] * 5)),
        }
        found = []
        for name, (model, calibration) in calibrations.items():
            model.save_pretrained(self.folder / name)
            calibration.save(self.folder / name / FILE)
            files = ("config.json", "model.safetensors", FILE)
            found.append({file: (self.folder / name / file).read_bytes() for file in files})
        return found

    def _recipe(self) -> dict[str, Any]:
        from dataclasses import asdict

        from finola.recipes.loading import load_recipe

        return asdict(load_recipe("smoke"))

    def _photos(self) -> dict[str, bytes]:
        import numpy as np
        from PIL import Image, ImageCms

        values = np.random.default_rng(0).integers(0, 256, (16, 24, 3), np.uint8)
        photo = Image.fromarray(values)
        exif = Image.Exif()
        exif[0x0112] = 6
        icc = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
        found = {}
        for suffix, kind in (
            ("jpg", "JPEG"),
            ("png", "PNG"),
            ("webp", "WEBP"),
            ("gif", "GIF"),
            ("tif", "TIFF"),
            ("bmp", "BMP"),
        ):
            file = io.BytesIO()
            photo.save(file, kind, **({"exif": exif, "icc_profile": icc} if kind in ("JPEG", "PNG", "WEBP") else {}))
            found[suffix] = file.getvalue()
        return found

    def _coco(self) -> dict[str, Any]:
        import numpy as np
        from pycocotools import mask as coco_mask

        box = {"category_id": 3, "bbox": [4, 5, 12, 8], "area": 96, "iscrowd": 0}
        outline = {"segmentation": [[4, 5, 16, 5, 16, 13, 4, 13]]}
        runs = {"segmentation": {"size": [24, 16], "counts": [0, 100, 284]}}
        values = np.zeros((24, 16), np.uint8, order="F")
        values[5:13, 4:16] = 1
        coded = {"segmentation": {"size": [24, 16], "counts": coco_mask.encode(values)["counts"].decode()}}
        objects = [
            box | more | {"id": number, "image_id": 1 + number % 2}
            for number, more in enumerate((outline, runs, coded))
        ]
        names = [{"id": number, "file_name": f"{number}.png", "height": 24, "width": 16} for number in (1, 2)]
        return {"images": names, "categories": [{"id": 3, "name": "box"}], "annotations": objects}

    def _embeddings(self) -> dict[str, bytes]:
        """The output of `finola embed`: manifest, records of shards and Parquet files."""
        from finola.batch import embed

        embed(self._photo_folder(), self.folder / "embeddings", "waves/32x1@4:16", shard_size=2)
        return files_below(self.folder / "embeddings")

    def _compressed(self) -> dict[str, bytes]:
        """The output of `finola compress --shards`."""
        from finola.batch import compress_dataset

        compress_dataset(self._photo_folder(), self.folder / "compressed", "waves512", shard_size=2)
        return files_below(self.folder / "compressed")

    def _exported(self) -> dict[str, bytes]:
        import finola
        from finola.deployment import export

        export(finola.load("waves/16x1@4:16"), self.folder / "exported")
        return files_below(self.folder / "exported")

    def _photo_folder(self) -> Path:
        folder = self.folder / "photos"
        folder.mkdir(exist_ok=True)
        write({f"a.{suffix}": data for suffix, data in self.get("photos").items() if suffix in ("jpg", "png")}, folder)
        return folder


def files_below(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# One function a reader: it writes the case's files into a folder and reads them with the package's public functions.


def read_container(samples: Samples, rng: random.Random, folder: Path) -> None:
    import finola

    data = rng.choice(samples.get("containers"))
    data = mutate_bytes(data, rng, range(40)) if rng.random() < 0.9 else rng.randbytes(rng.randint(0, 200))
    if rng.random() < 0.6:  # under a right checksum, damage reaches header, entropy coder and model
        data = data[:-4] + zlib.crc32(data[:-4]).to_bytes(4, "little")
    (folder / "a.finola").write_bytes(data)
    finola.decompress(folder / "a.finola")


def read_model(samples: Samples, rng: random.Random, folder: Path) -> None:
    import finola

    files = dict(rng.choice(samples.get("models")))
    if rng.random() < 0.5:
        files["config.json"] = mutate_json(json.loads(files["config.json"]), rng)
    else:
        files["model.safetensors"] = mutate_safetensors(files["model.safetensors"], rng)
    write(files, folder)
    finola.load(str(folder))


def read_tables(samples: Samples, rng: random.Random, folder: Path) -> None:
    import torch

    from finola.codec.calibration import FILE
    from finola.codec.codec import compress, decompress

    files = dict(rng.choice(samples.get("models")))
    files[FILE] = mutate_safetensors(files[FILE], rng)
    write(files, folder)
    file = compress(torch.linspace(0, 1, 768).reshape(3, 16, 16), model=str(folder))
    decompress(file.data, model=str(folder))


def read_recipe(samples: Samples, rng: random.Random, folder: Path) -> None:
    import yaml

    from finola.recipes.loading import load_recipe

    overrides, path = [], folder / "theirs.yaml"
    tree = samples.get("recipe")
    kind = rng.randrange(4)
    if kind == 0:
        data = mutate_bytes(yaml.safe_dump(tree).encode(), rng)
    elif kind == 1:
        extra = rng.choice(
            (
                "a: &a [1]\nb: *a\n",
                "about: ${oc.env:HOME}\n",
                "- " * 5000,
                "x: !!python/name:os.system\n",
                "<<: {seed: 1}\n",
            )
        )
        data = b"base: smoke\n" + extra.encode()
    elif kind == 2:
        data = mutations.dump(
            mutate_tree({"base": "smoke"} | {key: tree[key] for key in rng.sample(sorted(tree), 4)}, rng)
        )
    else:
        data = b"base: smoke\n"
        key = rng.choice(
            (
                "seed",
                "about",
                "data.path",
                "optimiser.groups",
                "optimiser.groups.a",
                "loss.quantisation_steps",
                "x.y",
                "",
            )
        )
        overrides = [f"{key}={mutations.dump(odd_value(rng)).decode()}"]
    path.write_bytes(data)
    load_recipe(path, overrides)


def read_coco(samples: Samples, rng: random.Random, folder: Path) -> None:
    from finola.data.coco import open_coco
    from finola.data.detection import Fit, ObjectDataset
    from finola.evaluation.detection import ground_truth

    photo = samples.get("photos")["png"]
    files = {"annotations/instances_train2017.json": mutate_json(samples.get("coco"), rng)}
    write(files | {f"train2017/{number}.png": photo for number in (1, 2)}, folder)
    source = open_coco(folder, "all")
    ground_truth(source, range(len(source)))
    dataset = ObjectDataset(source, Fit(16, 24), masks=True)
    dataset.left_out()
    for number in range(min(len(dataset), 3)):
        dataset[0, number]


def read_parquet(samples: Samples, rng: random.Random, folder: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    photos = samples.get("photos")
    columns: dict[str, Any] = {"image": [photos["png"], photos["jpg"]], "label": [0, 1], "name": ["a", "b"]}
    metadata = json.dumps({"info": {"features": {"label": {"names": ["a", "b"]}}}}).encode()
    metadata = mutate_json(json.loads(metadata), rng) if rng.random() < 0.3 else metadata
    described = {"huggingface": metadata} if rng.random() < 0.5 else None
    odd = [odd_value(rng), odd_value(rng)] if rng.random() < 0.5 else [odd_value(rng)] * 2
    odd = [{"bytes": odd[0], "path": "/etc/passwd"}] * 2 if rng.random() < 0.2 else odd
    key, compression = rng.choice(("image", "label", "name")), rng.choice(("none", "snappy", "zstd"))
    file = io.BytesIO()
    try:
        table = pyarrow.table(columns | ({key: odd} if rng.random() < 0.5 else {})).replace_schema_metadata(described)
        parquet.write_table(table, file, row_group_size=1, compression=compression)
    except (pyarrow.ArrowException, OverflowError, UnicodeEncodeError):  # there is no such column
        file = io.BytesIO()
        parquet.write_table(pyarrow.table(columns), file, row_group_size=1, compression=compression)
    data = file.getvalue()
    if rng.random() < 0.7:
        data = mutate_bytes(data, rng, range(max(0, len(data) - 1500), len(data)))
    (folder / "a.parquet").write_bytes(data)
    read_all(folder / "a.parquet")


def read_shards(samples: Samples, rng: random.Random, folder: Path) -> None:
    photos = samples.get("photos")
    members = [(f"{number}.{suffix}", data) for number, (suffix, data) in enumerate(photos.items()) if len(data) < 4000]
    members += [(f"{number}.cls", b"%d" % (number % 3)) for number in range(len(members))]
    (folder / "a.tar").write_bytes(mutate_tar(sorted(members), rng))
    read_all(folder / "a.tar")


def read_embedded(samples: Samples, rng: random.Random, folder: Path) -> None:
    """Read damaged embeddings, or resume a run in a folder with a damaged file."""
    from finola.batch import embed, read_embeddings

    files = damage_one(samples.get("embeddings"), rng)
    write(files, folder / "out")
    if rng.random() < 0.5:
        embed(samples.folder / "photos", folder / "out", "waves/32x1@4:16", shard_size=2)
    for _ in read_embeddings(folder / "out"):
        pass


def read_compressed(samples: Samples, rng: random.Random, folder: Path) -> None:
    """Resume a run of `finola compress --shards` in a folder with a damaged file."""
    from finola.batch import compress_dataset

    write(damage_one(samples.get("compressed"), rng), folder / "out")
    summary = compress_dataset(samples.folder / "photos", folder / "out", "waves512", shard_size=2)
    assert summary.rows == summary.photos


def read_exported(samples: Samples, rng: random.Random, folder: Path) -> None:
    """Open a folder of exported graphs with a damaged file, and run it if it is accepted."""
    import torch

    import finola
    from finola.deployment import load_exported

    write(damage_one(samples.get("exported"), rng), folder / "out")
    model = load_exported(folder / "out", threads=1)
    finola.decode(model, finola.encode(model, torch.rand(3, 20, 24)))


def damage_one(files: dict[str, bytes], rng: random.Random) -> dict[str, bytes]:
    name = rng.choice(sorted(name for name, data in files.items() if data))
    data = files[name]
    if name.endswith(".json") and rng.random() < 0.7:
        return files | {name: mutate_json(json.loads(data), rng)}
    near = range(max(0, len(data) - 1500), len(data)) if name.endswith(".parquet") else range(min(512, len(data)))
    return files | {name: mutate_bytes(data, rng, near)}


def read_photo(samples: Samples, rng: random.Random, folder: Path) -> None:
    from finola import image_io as images

    suffix, data = rng.choice(sorted(samples.get("photos").items()))
    (folder / f"a.{suffix}").write_bytes(mutate_bytes(data, rng, range(64)))
    images.read_photo(folder / f"a.{suffix}")


def read_all(path: Path) -> None:
    from finola.data import open_data

    data = open_data(path, "all")
    for number in range(min(len(data), 3)):
        data.sample(number)
    assert all("\n" not in problem for problem in data.source.problems)


def write(files: dict[str, bytes], folder: Path) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


READERS: dict[str, Callable[[Samples, random.Random, Path], None]] = {
    "container": read_container,
    "model": read_model,
    "tables": read_tables,
    "recipe": read_recipe,
    "coco": read_coco,
    "parquet": read_parquet,
    "shards": read_shards,
    "photo": read_photo,
    "embedded": read_embedded,
    "compressed": read_compressed,
    "exported": read_exported,
}


def run_case(samples: Samples, reader: str, seed: int, number: int, folder: Path) -> tuple[str, str]:
    """Run one case: ("accepted", ""), ("refused", class), or ("failed", what happened)."""
    from finola.errors import FinolaError

    rng = random.Random(f"{seed} {reader} {number}")
    folder.mkdir(parents=True)
    try:
        READERS[reader](samples, rng, folder)
    except (FinolaError, ValueError, OSError) as error:
        sentence = str(error)
        if not sentence.strip() or "\n" in sentence:
            return "failed", f"no sentence: {type(error).__name__}: {sentence[:300]!r}"
        return "refused", type(error).__name__
    except Exception as error:  # whatever else a reader raises is what this looks for
        return "failed", f"{type(error).__name__}: {str(error)[:300]!r}"
    return "accepted", ""

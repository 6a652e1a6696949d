"""`finola compress --shards`: a whole data set as WebDataset shards of `.finola` files."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import dataclass
from typing import IO, Any, ClassVar

from finola.batch.shards import TAR, Made, PhotoError, Shard, attempt_photo
from finola.codec.calibration import load_codec
from finola.codec.codec import Compressed, check_options, compress, default_codec
from finola.data.shards import open_tar
from finola.data.sources import Source
from finola.errors import CorruptFileError, InputError, first_line, valid_unicode
from finola.model_zoo import choose_device


@dataclass(frozen=True)
class CompressTask:
    """Settings of `compress_dataset` that decide a shard; `hash` is that of the codec, checked by every worker."""

    model: str
    hash: str
    quality: int | None = None
    bpp: float | None = None
    per_tile: int | None = None
    mode: str = "coded"
    effort: int = 0
    keep_exif: bool = False
    device: str = "auto"

    template: ClassVar[str] = TAR

    def settings(self) -> dict[str, Any]:
        """The device is left out: it changes files by rounding errors only."""
        return {"model": self.model, "hash": self.hash, **self._options()}

    def _options(self) -> dict[str, Any]:
        names = ("quality", "bpp", "per_tile", "mode", "effort", "keep_exif")
        return {name: getattr(self, name) for name in names}

    def smaller(self) -> None:
        """Photos are compressed one at a time, so memory cannot be reduced."""
        return None

    def check(self, stream: IO[bytes], rows: int) -> None:
        check_shard(stream, rows)

    def make(self, source: Source, shard: Shard) -> Made:
        """Compress the photos of a shard to a tar file: `KEY.finola`, `KEY.json` and, with a label, `KEY.cls`."""
        found = load_codec(self.model).hash.hex()
        if found != self.hash:
            raise InputError(
                f"The codec {self.model} has hash {found} on this machine, but {self.hash} where the run started: "
                "use the same model folder on all machines."
            )
        device = choose_device(self.device)

        def compressed(index: int) -> Compressed:
            return compress(source.open(index), model=self.model, device=device, **self._options())

        file, errors = io.BytesIO(), list[PhotoError]()
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for index in range(shard.start, shard.stop):
                made = attempt_photo(compressed, source, index, errors)
                if made is None:
                    continue
                facts = {"id": source.name(index), "index": index}
                facts |= {"width": made.width, "height": made.height, "model": self.model, "model_hash": self.hash}
                members = {"finola": made.data, "json": json.dumps(valid_unicode(facts)).encode()}
                if source.label(index) >= 0:
                    members["cls"] = str(source.label(index)).encode()
                for suffix, data in members.items():
                    _add(tar, f"{index:09d}.{suffix}", data)
        return Made(file.getvalue(), len(shard) - len(errors), errors)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add a member without time and owner, so that equal contents give equal files."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def check_shard(stream: IO[bytes], rows: int) -> None:
    """Raise CorruptFileError unless a tar file is complete and has this number of `.finola` members."""
    try:
        with open_tar(stream) as tar:
            found = sum(member.name.endswith(".finola") for member in tar)
    except Exception as error:  # tarfile raises IndexError, OverflowError, … for corrupt headers
        raise CorruptFileError(f"The file cannot be read as a tar file: {first_line(error)}.") from error
    if found != rows:
        raise CorruptFileError(f"The shard has {found} photos instead of {rows}.")


def make_task(model: str | None, *, check_device: bool, device: str, keep_exif: bool, **options: Any) -> CompressTask:
    """Load a codec, and check the settings of `compress_dataset`."""
    check_options(**options)
    if check_device:
        choose_device(device)  # raises if there is no such device
    name = model or default_codec(options["mode"])
    return CompressTask(name, load_codec(name).hash.hex(), **options, keep_exif=keep_exif, device=device)

"""docs/reproduction.md follows from the stored results alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finola.cli import main
from finola.paper.claims import CLAIMS, rows_of
from finola.paper.definitions import Claim
from finola.paper.report import generate, judge_stored
from finola.paper.tables import quoted_numbers
from finola.paper.verdict import HOLDS, NEEDS_DATA, NOT_RUN, WEAKLY

ROOT = Path(__file__).parents[2]


def results(claim: Claim, *psnr: tuple[float | None, ...]) -> dict[str, object]:
    """Stored results of a claim: the PSNR of each row, by seed."""
    rows = {}
    for row, values in zip(rows_of(claim).values(), psnr, strict=False):
        seeds = {
            str(seed): {
                "status": "diverged" if value is None else "finished",
                "images": 3200,
                **dict.fromkeys(claim.metrics, value),
            }
            for seed, value in enumerate(values)
        }
        rows[row.about] = {"recipe": "r", "model": "mf-w720/4x1@4:64", "paper": quoted_numbers(row), "seeds": seeds}
    data = {"name": "photos256", "train": 4866, "val": 700, "digest": "0"}
    return {"claim": claim.name, "scale": "cpu", "data": data, "rows": rows}


def store(folder: Path, result: dict[str, object]) -> None:
    (folder / "cpu").mkdir(exist_ok=True)
    (folder / "cpu" / f"{result['claim']}.json").write_text(json.dumps(result))
    times = {"a": {str(seed): {"minutes": minutes, "machine": "a CPU"} for seed, minutes in enumerate((1.5, 2.5))}}
    (folder / "cpu" / f"{result['claim']}.times.json").write_text(json.dumps(times))


def test_the_page_is_current(tmp_path: Path) -> None:
    assert main(["reproduce", "--report", str(tmp_path / "x.md"), "--results", str(ROOT / "results/reproduce")]) == 0
    assert (tmp_path / "x.md").read_text("utf-8") == (ROOT / "docs" / "reproduction.md").read_text("utf-8")


def test_the_page_replaces_a_file_only_with_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.md").write_text("mine")
    words = ["reproduce", "--report", str(tmp_path / "x.md"), "--results", str(ROOT / "results/reproduce")]
    assert main(words) == 2 and "--force" in capsys.readouterr().err
    assert (tmp_path / "x.md").read_text() == "mine"
    assert main([*words, "--force"]) == 0
    assert (tmp_path / "x.md").read_text("utf-8").startswith("# ")


def test_the_page_shows_verdict_margin_noise_images_minutes_and_machine(tmp_path: Path) -> None:
    store(tmp_path, results(CLAIMS["speeds"], (20.0, 20.1), (21.0, 21.2), (None, None)))
    store(tmp_path, results(CLAIMS["all-one"], (20.0, 20.1, 20.2), (21.0, 21.2, 21.3)))
    page = generate(tmp_path)
    verdicts = {line.split(" | ")[0][2:]: line for line in page.splitlines() if line.startswith("| ")}
    assert "**does not hold at this scale**" in verdicts["speeds"] and "−∞ dB" in verdicts["speeds"]
    assert "| **holds** |" in verdicts["all-one"] and "1.07 dB | 0.06 dB | 0.00" in verdicts["all-one"]
    assert NOT_RUN in verdicts["channels"]
    assert "20.10 ± 0.10 | 21.6 |" in page and "2 of 2 diverged" in page
    assert "4,866 training photos and 700 of 700 validation photos" in page
    assert "6 runs, 4 minutes in all, on a CPU" in page and "3,200 images seen per run" in page
    assert f"**{NEEDS_DATA}** (ImageNet-1K and COCO 2017)" in page


def test_curves_are_shown_over_images_seen(tmp_path: Path) -> None:
    result = results(CLAIMS["wave-start"], (20.0, 20.2), (21.0, 21.2), (22.0, 22.2), (23.0, 23.2))
    for row in result["rows"].values():  # type: ignore[attr-defined]
        for seed in row["seeds"].values():
            seed["curve"] = [[1600, seed["psnr"] - 1], [3200, seed["psnr"]]]
    store(tmp_path, result)
    page = generate(tmp_path)
    assert "| images seen | 1,600 | 3,200 |" in page
    assert "| wave start, C = 96 | 20.10 | 21.10 |" in page


@pytest.mark.parametrize(
    ("psnr", "status"),
    [
        ([(20.0, 20.1, 20.0), (21.0, 21.2, 21.1)], HOLDS),
        ([(20.0, 20.1), (21.0,)], WEAKLY),  # only the seeds that both rows have
        ([(20.0, 20.1)], NOT_RUN),
        ([], NOT_RUN),
    ],
)
def test_incomplete_results(psnr: list[tuple[float, ...]], status: str) -> None:
    assert judge_stored(CLAIMS["all-one"], results(CLAIMS["all-one"], *psnr)).status == status
    assert judge_stored(CLAIMS["all-one"], None).status == NOT_RUN

"""finola segment: segment objects in photos, draw masks and boxes, and write results in COCO format."""

from __future__ import annotations

import argparse

from finola.cli.verbs.detect import add_detection_arguments, run_detection

HELP = "segment objects in photos: images with masks and boxes, and JSON in COCO format"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_detection_arguments(parser, "segmented")


def run(args: argparse.Namespace) -> int:
    return run_detection(args, masks=True)

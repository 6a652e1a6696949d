"""finola segment: masks, boxes, names and scores of what is in photos, drawn and as COCO writes them."""

from __future__ import annotations

import argparse

from finola.cli.verbs.detect import add_finder_arguments, run_finder

HELP = "find objects in photos by a trained segmenter: drawn masks and boxes, and JSON as COCO writes it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_finder_arguments(parser, "segmented")


def run(args: argparse.Namespace) -> int:
    return run_finder(args, masks=True)

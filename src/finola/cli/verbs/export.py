"""finola export: the parts of a model as ONNX or torch.export graphs, compared with the model."""

from __future__ import annotations

import argparse

from finola.cli.inputs import take_leading_model
from finola.cli.output import add_force, print_json, print_table, progress_bar
from finola.errors import require

HELP = "export a model to ONNX or torch.export files: encoder, decoder or head, and the whole"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help="bundled model, folder or Hub id of any model")
    parser.add_argument("-m", "--model", dest="chosen", metavar="MODEL", help="the same as an option")
    parser.add_argument("-o", "--out", required=True, metavar="DIR", help="folder for the files and export.json")
    text = "files to write (default: %(default)s); open those of torch with torch.export.load"
    parser.add_argument("--format", choices=("onnx", "torch"), default="onnx", help=text)
    text = "store weights in half precision; computation stays in single precision"
    parser.add_argument("--half", action="store_true", help=text)
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    """Export a model, compare the files with it, and print their sizes, differences and times."""
    take_leading_model(args)
    if args.format == "onnx":
        require("onnx", "onnxscript", "onnxruntime")
    from finola.deployment import export, output_files, verify
    from finola.model_zoo import load_model

    output_files(args.out, args.format, args.force)  # before the model is loaded
    model = load_model(args.model).eval()
    with progress_bar("exporting") as report:
        manifest = export(
            model, args.out, args.format, half=args.half, force=args.force, name=args.model, progress=report
        )
    rows = verify(model, args.out, trusted=True)  # the files have just been written
    if args.json:
        print_json({"written": args.out, **manifest, "verified": rows})
        return
    runtime = "onnxruntime, ms" if args.format == "onnx" else "torch.export, ms"
    body = [
        (
            row["part"],
            row["file"],
            f"{row['bytes'] / 1e6:.1f}",
            f"{row['difference']:.1e}",
            f"{1e3 * row['pytorch_seconds']:.1f}",
            f"{1e3 * row['exported_seconds']:.1f}",
        )
        for row in rows
    ]
    columns = ["part", "file", "MB", "largest difference", "PyTorch, ms", runtime]
    print_table(f"{args.model} in {args.out}", columns, body)
    print("Differences over photos of several tiles in a batch; times for one photo of one tile, or one image.")

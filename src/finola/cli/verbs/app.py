"""finola app: serve an interactive page for the browser."""

from __future__ import annotations

import argparse

HELP = "open a page in the browser: drop a photo, see what a model makes of it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen at (default: %(default)s, this machine alone)"
    )
    parser.add_argument("--port", type=int, help="the port to listen at (default: the first free one from 7860 on)")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name of this machine under which browsers open the page; can be repeated",
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser")


def run(args: argparse.Namespace) -> None:
    from importlib.util import find_spec

    if find_spec("gradio") is None:
        raise ValueError("the page needs Gradio: pip install finola[app].")
    from finola.app.server import serve

    def ready(address: str) -> None:
        print(f"The page is at {address}, until you press Ctrl+C.", flush=True)
        if args.open:
            import webbrowser

            webbrowser.open(address)

    serve(args.host, args.port, ready, args.allow_host)

"""Griffe extension for the API reference: docstrings as Markdown.

Doctest examples become fenced code blocks, which Markdown would otherwise render as quotations. The characters `][` are
escaped outside of code, which Markdown would otherwise read as a reference to another page.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)  # from a prompt to the next empty line
CODE = re.compile(r"(```.*?```|`[^`]*`)", re.DOTALL)


def to_markdown(docstring: str) -> str:
    """Fence the examples of a docstring and escape `][` in its prose."""
    fenced = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", docstring)
    parts = CODE.split(fenced)  # odd parts are code
    return "".join(part if index % 2 else part.replace("][", r"]\[") for index, part in enumerate(parts))


class Docstrings(griffe.Extension):
    """Convert the docstring of every object that Griffe loads."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value)

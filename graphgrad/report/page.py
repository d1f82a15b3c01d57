"""A page that needs nothing else: a template, with its style, its script and its facts inside."""

from __future__ import annotations

import html
import json
import re
from importlib.resources import files
from typing import Any


def page(title: str, facts: dict[str, Any]) -> str:
    """The report as HTML, of ``page.html``, ``page.css`` and ``page.js`` beside this file.

    Parameters
    ----------
    title : str
    facts : dict
        What the script shows, as plain values.
    """
    parts = {
        "title": html.escape(title),
        "style": _template("page.css"),
        "script": _template("page.js"),
        # Names of a file may hold anything, such as the end of the element that they are in.
        "facts": json.dumps(facts, allow_nan=False).replace("<", "\\u003c"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _template("page.html"))


def _template(name: str) -> str:
    """The text of a file of the package."""
    return files("graphgrad.report").joinpath(name).read_text("utf-8")

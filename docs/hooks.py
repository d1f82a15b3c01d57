"""The pages of the site that are no files here: of the root, of notebooks, of each public name.

A hook of ``mkdocs.yml``. The names are read from the source, so that nothing is imported.
"""

import ast
import json
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {name: f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")}
PAGES["README"] = "index.md"
NOTEBOOKS = ROOT / "examples" / "notebooks"

RETURNED = {
    "check_grads": "check.result.GradientCheck",
    "coverage": "report.coverage.Coverage",
    "profile": "profile.profile.Profile",
    "train_step": "train.step.TrainStep",
}
"""What some functions return, which has no public name: described on their pages."""

_LINK = re.compile(r"\[([^\[\]]*)\]\((?!\w+:|#)([^)\s]+)\)")


def on_config(config):
    """Put a page for each public name at the end of the menu."""
    config.nav.append({"API": [{name: f"api/{name}.md"} for name in public_names()]})
    return config


def on_files(files, config):
    """Add the pages."""
    for source, target in PAGES.items():
        text = (ROOT / f"{source}.md").read_text("utf-8")
        files.append(File.generated(config, target, content=text))
    for path in NOTEBOOKS.glob("*.ipynb"):
        files.append(File.generated(config, f"{path.stem}.md", content=_notebook(path)))
    for name in public_names():
        text = "\n".join(f"::: graphgrad.{n}\n" for n in (name, RETURNED.get(name)) if n)
        files.append(File.generated(config, f"api/{name}.md", content=text))
    return files


def on_page_markdown(markdown, page, **_):
    """Let links lead to where the pages are on the site; to what is no page, there is none."""
    folder = ROOT if page.file.generated_by else ROOT / "docs"
    return _LINK.sub(lambda match: _link(folder, *match.groups()), markdown)


def public_names():
    """The names of ``graphgrad.__all__``."""
    tree = ast.parse((ROOT / "graphgrad" / "__init__.py").read_text("utf-8"))
    (names,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return sorted(ast.literal_eval(names), key=str.lower)


def _notebook(path):
    """A notebook as a page: its text, its code, and what that has printed."""
    parts = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            parts.append(f"```text\n{''.join(output['text'])}```")
    return "\n\n".join(parts)


def _link(folder, text, address):
    """A link of a page whose file is in a folder of the repository, as it is on the site."""
    path, _, anchor = address.partition("#")
    end = f"#{anchor}" if anchor else ""
    file = (folder / path).resolve()
    if file.parent == ROOT / "docs" and file.exists():
        return f"[{text}]({file.name}{end})"
    if file.parent == NOTEBOOKS:
        return f"[{text}]({file.stem}.md)"
    if file.parent == ROOT and file.stem in PAGES:
        return f"[{text}]({PAGES[file.stem]}{end})"
    return text if file.exists() else f"[{text}]({address})"

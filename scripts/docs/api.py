"""The pages of the API reference: one for each package, made of every name that its ``__init__`` makes public."""

import ast
import importlib
import inspect
import io
import re
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "regard"
# The order of the packages, as in CONTRIBUTING.
ORDER = (
    "reference", "functional", "layers", "models", "convert", "maps", "analysis", "figures", "data", "training",
    "recipes", "claims", "course", "views", "studio",
)  # fmt: skip
NOT_SHOWN = ("cli", "support")  # commands have a page of their own; helpers are for this library's own use


def public_names(source: Path = SOURCE) -> dict[str, list[str]]:
    """The public names of each package: those that its ``__init__`` re-exports, as in ``import name as name``."""
    found = {path.parent.name for path in source.glob("[!_]*/__init__.py")} - {*NOT_SHOWN}
    packages = sorted(found, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    return {package: _exports(source / package / "__init__.py") for package in packages}


def top_level_names(source: Path = SOURCE) -> dict[str, str]:
    """The names of ``regard`` itself, each with the package that defines it."""
    for node in ast.parse((source / "__init__.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "_NAMES":
            found: dict[str, str] = ast.literal_eval(node.value)
            return found
    raise ValueError("regard/__init__.py has no table of names, _NAMES")


def _exports(path: Path) -> list[str]:
    """Names in ``from regard.x import name as name``, and functions and classes defined right there."""
    names = []
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regard."):
            names += [
                alias.name for alias in node.names if alias.name == alias.asname and not alias.name.startswith("_")
            ]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            names.append(node.name)
    return sorted(names, key=str.lower)


def links(names: Mapping[str, list[str]]) -> dict[str, str]:
    """Where each name is described. If several packages have it, the first one other than ``reference``."""
    found: dict[str, str] = {}
    for package, public in names.items():
        for name in public:
            if ".reference." in found.get(name, ".reference."):
                found[name] = f"regard.{package}.{name}"
    return found


def pages(source: Path = SOURCE) -> dict[str, str]:
    """The Markdown of every page, by its path under ``docs``."""
    names = public_names(source)
    found = {"api/index.md": _index(names, top_level_names(source)), "api/commands.md": _commands()}
    for package, public in names.items():
        summary = ast.get_docstring(ast.parse((source / package / "__init__.py").read_text("utf-8"))) or ""
        first = summary.partition("\n\n")[0].replace("\n", " ")
        parts = [f"# regard.{package}\n", f"{_plain(first)}\n", *(f"::: regard.{package}.{name}\n" for name in public)]
        found[f"api/{package}.md"] = "\n".join(parts)
    return found


def _commands() -> str:
    """The help text of each command."""
    from regard.cli import commands, main

    parts = ["# The command line\n", "The output of `regard COMMAND --help`.\n"]
    for name, what in commands().items():
        said = io.StringIO()
        with redirect_stdout(said), suppress(SystemExit):
            main([name, "--help"])
        parts.append(
            f"## regard {name} {{ #{name} }}\n\n{what[0].upper()}{what[1:]}.\n\n```text\n{said.getvalue().strip()}\n```\n"
        )
    return "\n".join(parts)


def _index(names: Mapping[str, list[str]], top: Mapping[str, str]) -> str:
    lines = [
        "# API reference\n",
        "Generated from the docstrings. Every example in them runs as a test. Names that a package exports are public;",
        "modules that begin with an underscore are private.\n",
        "## The names of `regard` itself\n",
        "They are loaded on first use, so `import regard` is quick.\n",
        "| name | what it is |",
        "|---|---|",
    ]
    for name, module in sorted(top.items(), key=lambda item: item[0].lower()):
        package = module.removeprefix("regard.")
        known = name in names.get(package, [])
        place = f"[`regard.{name}`]({package}.md#{module}.{name})" if known else f"`regard.{name}`"
        lines.append(f"| {place} | {first_line(package, name) if known else f'`{module}.{name}`'} |")
    lines += ["", "In a terminal: [the command line](commands.md).", ""]
    for package, public in names.items():
        lines += [f"## [`regard.{package}`]({package}.md)", "", "| name | what it is |", "|---|---|"]
        lines += [
            f"| [`{name}`]({package}.md#regard.{package}.{name}) | {first_line(package, name)} |" for name in public
        ]
        lines.append("")
    return "\n".join(lines) + "\n"


def first_line(package: str, name: str) -> str:
    """What the docstring says first, in one line of a table.

    >>> first_line("maps", "Maps")[:8]
    'The maps'
    """
    described = getattr(importlib.import_module(f"regard.{package}"), name)
    known = callable(described) or inspect.ismodule(described)  # a number or a path has the docstring of its type
    said = (inspect.getdoc(described) or "").partition("\n\n")[0].replace("\n", " ") if known else ""
    line = re.match(r".*?[.:](?= |$)|.*", _plain(said))
    return (line[0] if line else "").rstrip(":").replace("|", "\\|").replace("``", "`")


def _plain(text: str) -> str:
    """Replace Sphinx roles by code, because the summary stands outside the docstring."""
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)

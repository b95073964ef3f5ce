"""The pages of the API reference: one for each package, made of every name that its ``__init__`` makes public."""

import ast
import io
import re
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "regard"
# In the order in which imports point.
ORDER = (
    "reference", "functional", "layers", "models", "convert", "maps", "analysis", "data", "training", "recipes", "claims",
    "figures", "views", "studio",
)  # fmt: skip


def public_names(source: Path = SOURCE) -> dict[str, list[str]]:
    """For each package its public names: those that it imports from its private modules as themselves."""
    found = sorted(path.parent.name for path in source.glob("[!_]*/__init__.py") if path.parent.name != "cli")
    packages = sorted(found, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    return {package: _exports(source / package / "__init__.py") for package in packages}


def top_level_names(source: Path = SOURCE) -> dict[str, str]:
    """The names of ``regard`` itself, and the package that each is defined in."""
    for node in ast.parse((source / "__init__.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "_NAMES":
            found: dict[str, str] = ast.literal_eval(node.value)
            return found
    raise ValueError("regard/__init__.py has no table of names, _NAMES")


def _exports(path: Path) -> list[str]:
    """Names in ``from regard.x._y import name as name``, and functions and classes defined right there."""
    names = []
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and "._" in (node.module or ""):
            names += [
                alias.name for alias in node.names if alias.name == alias.asname and not alias.name.startswith("_")
            ]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            names.append(node.name)
    return sorted(names, key=str.lower)


def links(names: Mapping[str, list[str]]) -> dict[str, str]:
    """Where each name is described: of several places the first that is not the slow, readable one."""
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
    """What each command of the command line says about itself."""
    from regard.cli import commands, main

    parts = ["# The command line\n", "What `regard COMMAND --help` says.\n"]
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
        "Generated from the docstrings; every example in them runs as a test. Public is what a package exports; modules",
        "that begin with an underscore are not.\n",
        "## The names of `regard` itself\n",
        "Loaded on first use, so that `import regard` is quick.\n",
        "| name | is |",
        "|---|---|",
    ]
    for name, module in sorted(top.items(), key=lambda item: item[0].lower()):
        package = module.removeprefix("regard.")
        known = name in names.get(package, [])
        place = f"[`{module}.{name}`]({package}.md#{module}.{name})" if known else f"`{module}.{name}`"
        lines.append(f"| `regard.{name}` | {place} |")
    lines += [
        "",
        "On a terminal: [the command line](commands.md).",
        "",
        "## Packages\n",
        "| package | public names |",
        "|---|---|",
    ]
    for package, public in names.items():
        listed = ", ".join(f"[`{name}`]({package}.md#regard.{package}.{name})" for name in public)
        lines.append(f"| [`regard.{package}`]({package}.md) | {listed} |")
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Roles as code: the summary stands outside any docstring's own links."""
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)

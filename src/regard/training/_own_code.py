"""Recipes, tasks, networks and optimizers of your own: from a Python file or an importable module."""

import ast
import hashlib
import importlib
import importlib.util
import inspect
import json
import linecache
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from regard.data import data_folder
from regard.support.checks import UnusableInputError, check_path
from regard.support.files import write_atomic
from regard.support.reading import read_json
from regard.support.text import error_in_words
from regard.training._recipe import Recipe
from regard.training._recipe_json import modules_of

REMEMBERED = "own_code.json"
LARGEST_NOTE = 2**20
# Imported files by path, with the texts that they are made of: their own, and those of modules beside them.
_FILES: dict[str, tuple[ModuleType, dict[str, bytes]]] = {}
_BESIDE: dict[str, str] = {}  # modules that such a file imported from its own folder, with its path


class OwnCodeError(UnusableInputError):
    """A user's file or module cannot be used."""


def import_code(source: str) -> ModuleType:
    """Import a module by its name, or a Python file by its path. Its classes can then be parts of a recipe.

    >>> import_code("my_package.nothing")
    Traceback (most recent call last):
    regard.training._own_code.OwnCodeError: there is no module 'my_package.nothing' (No module named 'my_package'): ...
    """
    try:
        return _import_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    except OwnCodeError:
        raise
    except ModuleNotFoundError as missing:
        if missing.name and source.startswith(missing.name):
            raise OwnCodeError(
                f"there is no module {source!r} ({missing}): is its folder on PYTHONPATH, or the package installed?"
            ) from missing
        raise OwnCodeError(f"{source} needs a module that is missing: {missing}") from missing
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise OwnCodeError(f"{source} raises {error_in_words(error)}") from error


def load_recipe(source: str) -> Recipe:
    """Load a recipe from a file: ``my_recipe.py`` if one function there returns a :class:`Recipe`, ``my_recipe.py:name`` if
    several do. Underscores and dashes in the name are the same."""
    check_path("source", source)
    path, name = split_source(os.fspath(source))
    module = import_code(path)
    functions = recipes_in(module)
    if name:
        wanted = name.replace("-", "_")
        if wanted not in functions:
            raise OwnCodeError(f"{path} has no recipe {name!r}; {_known(functions)}")
    elif len(functions) != 1:
        raise OwnCodeError(f"{path} has {len(functions)} recipes; {_known(functions, path)}")
    else:
        wanted = next(iter(functions))
    try:
        recipe = functions[wanted]()
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise OwnCodeError(f"{wanted}() in {path} raises {error_in_words(error)}") from error
    if not isinstance(recipe, Recipe):
        raise OwnCodeError(f"{wanted}() in {path} must return a regard.training.Recipe, not {type(recipe).__name__}")
    return recipe


def recipe_summaries(source: str) -> dict[str, str]:
    """The recipes of a file with their docstrings, or the one that ``file.py:name`` names."""
    path, name = split_source(source)
    functions = recipes_in(import_code(path))
    wanted = name.replace("-", "_") or None
    if not functions or (wanted and wanted not in functions):
        raise OwnCodeError(f"{path} has no recipe{f' {name!r}' if name else ''}; {_known(functions)}")
    chosen = {wanted: functions[wanted]} if wanted else functions
    return {f"{path}:{each}": inspect.getdoc(function) or "" for each, function in chosen.items()}


def split_source(source: str) -> tuple[str, str]:
    """The file and the name in ``file.py:name``; without a colon the name is empty. Folders may have ``.py`` in their names.

    >>> split_source("old.python/my_recipe.py:small"), split_source("my_recipe.py")
    (('old.python/my_recipe.py', 'small'), ('my_recipe.py', ''))
    """
    if source.endswith(".py"):
        return source, ""
    path, _, name = source.rpartition(":")
    if not path.endswith(".py"):
        raise OwnCodeError(f"{source!r} is no recipe of your own: pass file.py, or file.py:name")
    return path, name


def recipes_in(module: ModuleType) -> dict[str, Callable[[], Any]]:
    """The public functions of a module that are annotated to return a Recipe; without any such, those without arguments."""
    own: dict[str, Callable[..., Any]] = {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    own = {name: value for name, value in own.items() if not _needed(value)}
    said = {name: value for name, value in own.items() if "Recipe" in str(value.__annotations__.get("return", ""))}
    return said or own


def sources_of(recipe: Recipe) -> list[str]:
    """The sources of the classes in a recipe, without regard's own: modules by name, files by path. Before a module beside a
    file comes that file: without it, the module is not found."""
    files = {module.__name__: path for path, (module, _) in _FILES.items()}
    own = [name for name in modules_of(recipe) if name.partition(".")[0] != "regard" and name != "__main__"]
    needed = [_BESIDE[name] for name in own if name in _BESIDE]
    return list(dict.fromkeys([*needed, *(files.get(name, name) for name in own)]))


def import_sources(sources: Sequence[Any], where: str) -> set[str]:
    """Import the user's code that a run was trained with, or raise an error that names what is missing. Returns the names
    of its modules.

    A run may come from a stranger, and importing executes code. So only code that was used for training on this machine
    is imported without asking. If a file does not exist here, a file of the same name that was imported before
    (``--import``) takes its place: on another machine it has another path.
    """
    imported = {Path(path).name for path in _FILES}
    for source in map(str, sources):
        gone = source.endswith(".py") and not Path(source).exists()
        if source in _FILES or source in sys.modules or (gone and Path(source).name in imported):
            continue
        if source not in _remembered():
            raise OwnCodeError(
                f"{where} was trained with code from {source}, which has not been used on this machine: "
                f"if you trust it, import it first (--import {source})"
            )
        try:
            import_code(source)
        except OwnCodeError as error:
            hint = f". If it was moved, pass its new path (--import folder/{Path(source).name})" if gone else ""
            raise OwnCodeError(
                f"{where} was trained with code from {source}, which cannot be used now: {error}{hint}"
            ) from error
    return {name for source in map(str, sources) for name in _module_names(source)}


def _module_names(source: str) -> list[str]:
    """The module of a source. If it is a file that is at another path here, those of all imported files of its name."""
    if not source.endswith(".py"):
        return [source]
    if source in _FILES:
        return [_FILES[source][0].__name__]
    return [module.__name__ for path, (module, _) in _FILES.items() if Path(path).name == Path(source).name]


def remember(sources: Sequence[str]) -> None:
    """Record on this machine that these sources were used for training."""
    known = _remembered()
    if new := [source for source in sources if source not in known]:
        with suppress(OSError, ImportError):  # without this record, --import is needed
            data_folder().mkdir(parents=True, exist_ok=True)
            write_atomic(data_folder() / REMEMBERED, json.dumps([*known, *new], indent=1) + "\n")


def _remembered() -> list[str]:
    try:
        found = read_json(data_folder() / REMEMBERED, LARGEST_NOTE)
    except (OSError, ImportError, ValueError):
        return []
    return [source for source in found if isinstance(source, str)] if isinstance(found, list) else []


def _import_file(path: Path) -> ModuleType:
    """Import a file, again if its text has changed since, or that of a module which it imports from its own folder: in a
    notebook, a recipe is edited and loaded in one process."""
    path = path.expanduser().absolute()
    known, texts = _FILES.get(str(path), (None, {}))
    if not path.is_file():
        if known is not None:
            return known
        raise OwnCodeError(f"there is no file {path}")
    changed = {file for file, text in texts.items() if _read(file) != text}
    if known is not None and not changed:
        return known
    text = path.read_bytes()
    name = f"{path.stem.replace('-', '_')}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # the name ends in .py
    module = importlib.util.module_from_spec(spec)
    folder = str(path.parent)
    # All of them: one that is as it was may have imported one that is not.
    old = {each: sys.modules.pop(each) for each in _beside(folder)} if changed - {str(path)} else {}
    sys.modules[name] = module
    before = set(sys.modules)
    importlib.invalidate_caches()
    sys.path.insert(0, folder)  # like a script, it can import modules in its folder
    try:
        # Not by the loader: it may take compiled code of the old text, if that has the same length and time.
        tree = ast.parse(text, str(path))
        exec(compile(tree, path, "exec", dont_inherit=True), vars(module))
        _check_beside(path, tree)
    except BaseException:
        del sys.modules[name]
        sys.modules.update(old)
        if known is not None:
            sys.modules[name] = known
        raise
    finally:
        sys.path.remove(folder)
    linecache.checkcache()  # so that tracebacks show the new texts
    for new in sys.modules.keys() - before:
        if _is_in(new, folder):
            _BESIDE.setdefault(new, str(path))
    files = [sys.modules[each].__file__ for each in _beside(folder)]
    _FILES[str(path)] = module, {str(path): text, **{file: _read(file) for file in files if file}}
    return module


def _read(file: str) -> bytes:
    """The text of a file, empty if it is gone."""
    return Path(file).read_bytes() if Path(file).is_file() else b""


def _beside(folder: str) -> list[str]:
    """The modules that files of a folder imported from it."""
    return [name for name in _BESIDE if _is_in(name, folder)]


def _is_in(name: str, folder: str) -> bool:
    """Whether a module that was imported is one of a folder, without packages that are installed there."""
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return file.startswith(folder + os.sep) and "site-packages" not in Path(file).parts


def _check_beside(path: Path, tree: ast.Module) -> None:
    """Refuse a file that means a module of its own folder, but got one of the same name from elsewhere: Python has one module
    of a name, the first that was imported in a process."""
    nodes = list(ast.walk(tree))
    named = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    named += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    for name in dict.fromkeys(each.partition(".")[0] for each in named):
        meant = [path.parent / f"{name}.py", path.parent / name / "__init__.py"]
        found = getattr(sys.modules.get(name), "__file__", None)
        if not found or name in sys.stdlib_module_names or not any(each.is_file() for each in meant):
            continue
        if not any(each.exists() and each.samefile(found) for each in meant):
            raise OwnCodeError(
                f"{path} imports {name!r} of its own folder, but {found} was imported under this name before: rename one of "
                "them, or use another process"
            )


def _needed(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD]


def _known(functions: dict[str, Any], path: str = "") -> str:
    if not functions:
        return "a function that takes no arguments and returns a regard.training.Recipe would fit"
    names = ", ".join(f"{path}:{name}" if path else name for name in functions)
    return f"there is {names}" if len(functions) == 1 else f"choose one of {names}"

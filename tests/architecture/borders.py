"""Read the source with ``ast`` and list every place that breaks the architecture's rules.

    python tests/architecture/borders.py                     all packages of src/regard
    python tests/architecture/borders.py src/regard layers   one package

The rules:

* **order**: a package imports only packages that stand before it in ``ORDER``;
* **private**: no package imports a private module or a private name of another package;
* **cycle**: no cycle between modules. Imports under ``TYPE_CHECKING`` and inside functions count;
* **class name**: each class name is defined once;
* **file name**: at most two files have the same name (``__init__.py`` and ``__main__.py`` aside, which Python names);
* **function length**: at most 60 lines of code, docstring, comments and blank lines not counted;
* **branches**: at most 15 in a function. ``if``, ``elif``, a loop, ``except``, ``case``, a conditional
  expression and the ``if`` of a comprehension are one branch each;
* **constructor**: at most 12 arguments, ``self`` not counted. The fields of a dataclass or a named tuple, inherited
  ones included, are the arguments of its constructor. ``COMMAND_LINE`` names the exceptions: settings that the command
  line fills field by field (``--epochs 3 --network.depth 2``), where nesting would only lengthen what people type;
* **file length**: at most 400 lines.

Triton kernels (``@triton.jit``) may be long and may branch often, because Triton has no cheap way to divide them.
The file needs only the standard library.
"""

import ast
import io
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

# A package imports only packages to its left. `regard/__init__.py` only loads names lazily and stands after all.
ORDER = (
    *(
        "_version",
        "support",
        "observation",
        "reference",
        "functional",
        "layers",
        "models",
        "convert",
        "maps",
        "analysis",
    ),
    *("figures", "data", "training", "recipes", "claims", "course", "views", "studio", "cli"),
    "__main__",  # python -m regard
)
FUNCTION_LINES = 60
BRANCHES = 15
ARGUMENTS = 12
COMMAND_LINE = ("Recipe", "ImageEncoderSettings")
FILE_LINES = 400
SAME_FILE_NAMES = 2

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Violation:
    rule: str
    package: str
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.place}: {self.text}"


@dataclass(frozen=True)
class Module:
    """One source file. ``name`` is dotted, as in ``regard.layers._gaussian``."""

    name: str
    path: Path
    is_package: bool

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def package(self) -> str:
        """Its first-level package: ``layers``. Empty for ``regard`` itself."""
        return ([*self.name.split("."), ""])[1]

    @cached_property
    def code_lines(self) -> set[int]:
        return code_lines(self.text, self.tree)


class Source:
    """All modules under one root package."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.modules = {}
        for path in sorted(self.root.rglob("*.py")):
            parts = [self.root.name, *path.relative_to(self.root).with_suffix("").parts]
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            self.modules[name] = Module(name, path, is_package)

    def place(self, module: Module, node: ast.AST | None = None) -> str:
        line = getattr(node, "lineno", 0)
        return str(module.path.relative_to(self.root)) + (f":{line}" if line else "")

    def violation(self, rule: str, module: Module, text: str, node: ast.AST | None = None) -> Violation:
        return Violation(rule, module.package, self.place(module, node), text)

    def imports(self, module: Module) -> Iterator[tuple[ast.AST, str, str]]:
        """Every import of the root package in ``module``, as (node, module imported, name taken from it or "")."""
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] == self.root.name:
                        yield node, alias.name, ""
            elif isinstance(node, ast.ImportFrom):
                base = self.absolute(module, node)
                if base.split(".")[0] != self.root.name:
                    continue
                for alias in node.names:
                    if f"{base}.{alias.name}" in self.modules:
                        yield node, f"{base}.{alias.name}", ""
                    else:
                        yield node, base, alias.name
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
                target = node.args[0]
                if isinstance(target, ast.Constant) and str(target.value).split(".")[0] == self.root.name:
                    yield node, str(target.value), ""

    @staticmethod
    def absolute(module: Module, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = module.name.split(".")
        parts = parts[: len(parts) - node.level + module.is_package]
        return ".".join([*parts, *([node.module] if node.module else [])])


def code_lines(text: str, tree: ast.AST) -> set[int]:
    """The numbers of the lines that hold code: no docstrings, comments or blank lines."""
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in layout:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return lines


def order(source: Source) -> Iterator[Violation]:
    rank = {package: index for index, package in enumerate(ORDER)}
    for module in source.modules.values():
        if not module.package:
            continue
        if module.package not in rank:
            yield source.violation("order", module, f"{module.package} has no place in ORDER")
            continue
        for node, target, name in source.imports(module):
            package = ([*target.split("."), name])[1]
            if package in rank and rank[package] > rank[module.package]:
                text = f"{module.package} imports {package}, which stands after it"
                yield source.violation("order", module, text, node)


def private(source: Source) -> Iterator[Violation]:
    for module in source.modules.values():
        for node, target, name in source.imports(module):
            parts = [*target.split("."), *([name] if name else [])]
            shared = len(parts) <= 2 or parts[1] == "_version"  # what lies in `regard` itself belongs to all
            hidden = [part for part in parts[2:] if part.startswith("_") and not part.startswith("__")]
            if hidden and not shared and parts[1] != module.package:
                yield source.violation("private", module, f"imports {'.'.join(parts)}", node)


def cycles(source: Source) -> Iterator[Violation]:
    """One violation for each group of modules that can all reach each other."""
    edges = {
        name: {target for _, target, _ in source.imports(module) if target in source.modules and target != name}
        for name, module in source.modules.items()
    }
    for group in strongly_connected(edges):
        if len(group) > 1:
            first = source.modules[min(group)]
            yield source.violation("cycle", first, " -> ".join(a_cycle(edges, group)) + f" ({len(group)} modules)")


def strongly_connected(edges: dict[str, set[str]]) -> list[set[str]]:
    """Kosaraju's algorithm, without recursion."""
    finished: list[str] = []
    seen: set[str] = set()
    for start in edges:
        stack = [(start, iter(sorted(edges[start])))] if start not in seen else []
        seen.add(start)
        while stack:
            node, following = stack[-1]
            unseen = next((target for target in following if target not in seen), None)
            if unseen is None:
                finished.append(stack.pop()[0])
            else:
                seen.add(unseen)
                stack.append((unseen, iter(sorted(edges[unseen]))))
    backward = defaultdict(set)
    for node, targets in edges.items():
        for target in targets:
            backward[target].add(node)
    groups, assigned = [], set()
    for node in reversed(finished):
        if node in assigned:
            continue
        group, todo = set(), [node]
        while todo:
            current = todo.pop()
            if current not in assigned:
                assigned.add(current)
                group.add(current)
                todo.extend(backward[current])
        groups.append(group)
    return groups


def a_cycle(edges: dict[str, set[str]], group: set[str]) -> list[str]:
    """A shortest cycle through the first module of the group."""
    start = min(group)
    previous: dict[str, str] = {}
    queue = [start]
    for node in queue:
        for target in sorted(edges[node] & group):
            if target == start:
                path = [node]
                while path[-1] != start:
                    path.append(previous[path[-1]])
                return [*reversed(path), start]
            if target not in previous:
                previous[target] = node
                queue.append(target)
    return [start]


def class_names(source: Source) -> Iterator[Violation]:
    found = defaultdict(list)
    for module in source.modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append((module, node))
    for name, places in found.items():
        if len(places) > 1:
            others = ", ".join(source.place(module) for module, _ in places)
            for module, node in places:
                yield source.violation("class name", module, f"{name} is defined {len(places)} times: {others}", node)


def file_names(source: Source) -> Iterator[Violation]:
    found = defaultdict(list)
    for module in source.modules.values():
        found[module.path.name].append(module)
    for name, modules in found.items():
        if len(modules) > SAME_FILE_NAMES and name not in ("__init__.py", "__main__.py"):
            for module in modules:
                yield source.violation("file name", module, f"{len(modules)} files have the name {name}")


def functions(source: Source) -> Iterator[Violation]:
    for module in source.modules.values():
        for node in ast.walk(module.tree):
            if not isinstance(node, Function) or any("triton.jit" in ast.unparse(d) for d in node.decorator_list):
                continue
            lines = sum(node.lineno <= line <= (node.end_lineno or 0) for line in module.code_lines)
            if lines > FUNCTION_LINES:
                yield source.violation("function length", module, f"{node.name} has {lines} lines of code", node)
            count = branches(node)
            if count > BRANCHES:
                yield source.violation("branches", module, f"{node.name} has {count} branches", node)


def branches(function: Function) -> int:
    kinds = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case, ast.IfExp)
    return sum(
        len(node.ifs) if isinstance(node, ast.comprehension) else isinstance(node, kinds) for node in ast.walk(function)
    )


def constructors(source: Source) -> Iterator[Violation]:
    classes = {
        node.name: node
        for module in source.modules.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    }
    for module in source.modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                count = arguments(node, classes)
                if count > ARGUMENTS and node.name not in COMMAND_LINE:
                    yield source.violation("constructor", module, f"{node.name} takes {count} arguments", node)


def arguments(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> int:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name in ("__init__", "__new__"):
            names = [*item.args.posonlyargs, *item.args.args, *item.args.kwonlyargs]
            return len(names) - 1
    return len(fields(node, classes))


def fields(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str]:
    """The fields of a dataclass or a named tuple, inherited ones included; none for any other class."""
    bases = [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]
    is_record = "NamedTuple" in bases or any("dataclass" in ast.unparse(d) for d in node.decorator_list)
    if not is_record:
        return set()
    found: set[str] = set()
    for base in bases:
        if base in classes and classes[base] is not node:
            found |= fields(classes[base], classes)
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            value = ast.unparse(item.value) if item.value else ""
            if "ClassVar" not in ast.unparse(item.annotation) and "init=False" not in value.replace(" ", ""):
                found.add(item.target.id)
    return found


def file_lengths(source: Source) -> Iterator[Violation]:
    for module in source.modules.values():
        lines = len(module.text.splitlines())
        if lines > FILE_LINES:
            yield source.violation("file length", module, f"{lines} lines")


RULES = {
    "order": order,
    "private": private,
    "cycle": cycles,
    "class name": class_names,
    "file name": file_names,
    "function": functions,
    "constructor": constructors,
    "file length": file_lengths,
}


def main(arguments: list[str]) -> int:
    given = arguments[0] if arguments else Path(__file__).resolve().parents[2] / "src" / "regard"
    source = Source(Path(given))
    if not source.modules:
        print(f"no Python file under {given}")
        return 2
    chosen = set(arguments[1:])
    found = [violation for rule in RULES.values() for violation in rule(source)]
    lines: Counter[str] = Counter()
    for module in source.modules.values():
        lines[module.package] += len(module.code_lines)
    for package in sorted(lines, key=lambda name: (*ORDER, name).index(name) if name in ORDER else -1):
        if chosen and package not in chosen:
            continue
        own = [violation for violation in found if violation.package == package]
        print(f"{package or source.root.name}: {lines[package]} lines of code, {len(own)} violations")
        for violation in own:
            print(f"    {violation}")
    print(f"total: {sum(lines.values())} lines of code, {len(found)} violations")
    return int(any(not chosen or violation.package in chosen for violation in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Change one value inside JSON, wherever it stands in an input: alone, in lines, in a header, or as a string in another."""

import json
import random
from collections.abc import Callable
from typing import Any

HOSTILE: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63 - 1, -(2**63), 10**9, 10**15, 0.5, -0.5, 1e308, float("nan"), float("inf"),
    "", "x", "../../etc/passwd", "NUL", "\x00", "é", "𝒳", [], {}, [[]], [0], [1, 2], [-1], ["x"], [None], {"a": 1},
    {"kind": "Recipe"}, {"kind": "ImageTask"}, [[[]]], [1e308], [2**40, 2**40], "float16", "U8", "F64", "train", "auto", [3, 3],
    [0, 1e9],
]  # fmt: skip


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """An input for :mod:`loaders`: with one changed value in its JSON, or changed by the fuzzer as bytes."""
    draw = random.Random(seed)
    if data and draw.random() < 0.6:
        changed = data[:1] + _anywhere(data[1:], draw)
        if changed != data and len(changed) <= max_size:
            return changed
    import atheris

    return bytes(atheris.Mutate(data, max_size))


def _anywhere(content: bytes, draw: random.Random) -> bytes:
    """JSON is looked for at the beginning, after a length of 4 or 8 bytes, and in single lines."""
    whole = _changed(content, draw)
    if whole is not None:
        return whole
    if b"\n" in content and content[:1] in (b"{", b"["):
        lines = content.split(b"\n")
        number = draw.randrange(len(lines))
        lines[number] = _changed(lines[number], draw) or lines[number]
        return b"\n".join(lines)
    found = [content]
    for width in (8, 4):
        length = int.from_bytes(content[:width], "little")
        if not 0 < length <= len(content) - width:
            continue
        first, rest = content[width : width + length], content[width + length :]
        if (new := _changed(first, draw)) is not None:
            found.append(len(new).to_bytes(width, "little") + new + rest)
            found.append(content[: width + length] + _anywhere(rest, draw))
    if content[8:9] in (b"{", b"["):  # a packed value: both lengths in front of it
        inner = int.from_bytes(content[4:8], "little")
        if (new := _changed(content[8 : 8 + inner], draw)) is not None:
            body = len(new).to_bytes(4, "little") + new + content[8 + inner :]
            found.append(len(body).to_bytes(4, "little") + body)
    return found[-1] if len(found) == 2 else draw.choice(found[1:] or found)


def _changed(text: bytes, draw: random.Random) -> bytes | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return json.dumps(_with_change(value, draw)).encode()


def _with_change(value: Any, draw: random.Random) -> Any:
    """Replace, remove, double or move one value; numbers also change a little."""
    places: list[tuple[Any, Any]] = []

    def walk(inside: Any) -> None:
        for key in list(inside) if isinstance(inside, dict) else range(len(inside)):
            places.append((inside, key))
            if isinstance(inside[key], dict | list):
                walk(inside[key])

    if isinstance(value, dict | list):
        walk(value)
    if not places:
        return draw.choice(HOSTILE)
    for _ in range(draw.choice((1, 1, 1, 2))):
        holder, key = draw.choice(places)
        draw.choice((_replace, _replace, _replace, _inner, _nudge, _remove, _move))(holder, key, places, draw)
    return value


Places = list[tuple[Any, Any]]
Change = Callable[[Any, Any, Places, random.Random], None]


def _there(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def _replace(holder: Any, key: Any, places: Places, draw: random.Random) -> None:
    if _there(holder, key):
        holder[key] = draw.choice(HOSTILE)


def _remove(holder: Any, key: Any, places: Places, draw: random.Random) -> None:
    if _there(holder, key):
        del holder[key]


def _move(holder: Any, key: Any, places: Places, draw: random.Random) -> None:
    other, name = draw.choice(places)
    if _there(holder, key) and _there(other, name):
        holder[key] = json.loads(json.dumps(other[name]))


def _nudge(holder: Any, key: Any, places: Places, draw: random.Random) -> None:
    if not _there(holder, key):
        return
    value = holder[key]
    if isinstance(value, int | float):
        holder[key] = draw.choice((value + 1, value - 1, -value, value * 2, value * 10**6, value / 3))
    elif isinstance(value, list) and value:
        holder[key] = value * draw.choice((2, 100)) if draw.random() < 0.5 else value[:-1]
    elif isinstance(value, str):
        holder[key] = draw.choice((value[:-1], value + "x", value * 50, value.upper()))


def _inner(holder: Any, key: Any, places: Places, draw: random.Random) -> None:
    """JSON in a string: the metadata of a file of tensors."""
    if _there(holder, key) and isinstance(holder[key], str):
        changed = _changed(holder[key].encode("utf-8", "surrogatepass"), draw)
        holder[key] = holder[key] if changed is None else changed.decode()

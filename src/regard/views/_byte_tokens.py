"""Tokens as text where a tokenizer spells bytes: byte-level BPE (GPT-2, Llama 3, Qwen) writes "é" as "Ã©", one letter for each
byte of UTF-8, and SentencePiece writes the bytes of rare characters as ``<0xC3>``."""

import re
from collections.abc import Callable, Sequence
from typing import Any

END = "</w>"  # CLIP's mark of the end of a word
_MARKS = "ĠĊ"  # a space and a newline: they begin words, and pages display them as signs
_ADDED = re.compile(r"<.+>|\[.+\]", re.DOTALL)
_BYTES = re.compile(r"(?:<0x[0-9A-F]{2}>)+")


def _alphabet() -> dict[str, int]:
    """The byte of each letter of byte-level BPE: printable Latin-1 for itself, the letters from U+0100 on for the rest."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(itself)]
    return {chr(byte): byte for byte in itself} | {chr(0x100 + place): byte for place, byte in enumerate(rest)}


_ALPHABET = _alphabet()


def readable(tokens: Sequence[str], *, is_byte_level: bool | None = None) -> list[str]:
    """The tokens with their bytes as characters. Bytes that are only a part of a character become ``<0xF0>``.

    Args:
        tokens: as the tokenizer spells them.
        is_byte_level: whether they are of byte-level BPE; default: if one of them begins with its mark for a space, and
            together they spell whole characters, which words with such letters do not.

    >>> readable(["It", "Ġis", "ĠcafÃ©", "ä¸ĸçķĮ", "ĠðŁĳ", "į"])
    ['It', 'Ġis', 'Ġcafé', '世界', 'Ġ<0xF0><0x9F><0x91>', '<0x8D>']
    >>> readable(["Ġcafé"])
    ['Ġcafé']
    >>> readable(["cafÃ©</w>", "is</w>"])
    ['café</w>', 'is</w>']
    """
    if is_byte_level is None:
        is_byte_level = any(token.startswith("Ġ") or token.endswith(END) for token in tokens) and _are_whole(tokens)
    return [_readable(token) for token in tokens] if is_byte_level else list(tokens)


def _readable(token: str) -> str:
    before, rest, after = _parts(token)
    data = _data(rest)
    if data is None or rest.isascii():
        return token
    return before + _text(data) + after


def _parts(token: str) -> tuple[str, str, str]:
    """A token between the marks of its beginning and of its end."""
    rest = token.lstrip(_MARKS)
    core = rest.removesuffix(END) or rest
    return token[: len(token) - len(rest)], core, rest[len(core) :]


def _are_whole(tokens: Sequence[str]) -> bool:
    """Whether tokens that follow each other spell UTF-8. Added tokens are text and end a run."""
    runs = [bytearray()]
    for token in tokens:
        data = _data(token.removesuffix(END))
        if data is None:
            runs.append(bytearray())
        else:
            runs[-1] += data
    try:
        return all(run.decode() is not None for run in runs)
    except UnicodeDecodeError:
        return False


def _data(letters: str) -> bytes | None:
    """The bytes that letters stand for; None if some stand for none, or for added tokens such as <|end|>, which are text."""
    if _ADDED.fullmatch(letters):
        return None
    codes = [_ALPHABET.get(letter) for letter in letters]
    return None if None in codes else bytes(code for code in codes if code is not None)


def _text(data: bytes) -> str:
    """UTF-8 as text, with code numbers for bytes that are no whole character."""
    # An undecodable byte b becomes the surrogate U+DC00 + b.
    text = data.decode("utf-8", "surrogateescape")
    return "".join(f"<0x{ord(one) - 0xDC00:02X}>" if "\udc80" <= one <= "\udcff" else one for one in text)


def is_byte_level(
    decode: Callable[[list[int]], Any] | None, numbers: Sequence[int], tokens: Sequence[str]
) -> bool | None:
    """Whether a tokenizer decodes a token to the text of its bytes; None if no token can tell."""
    for number, token in dict(zip(numbers, tokens, strict=True)).items():
        _, rest, _ = _parts(token)
        data = _data(rest)
        if decode is None or data is None or rest.isascii():
            continue
        decoded, text = str(decode([number])), data.decode("utf-8", "replace")
        return decoded.strip() == text.strip() or ("\ufffd" in decoded and "\ufffd" in text)
    return None


def joined(tokens: Sequence[str]) -> str:
    """One word of its tokens: bytes that complete each other become characters.

    >>> joined(["Ġ<0xF0><0x9F>", "<0x91><0x8D>", "<0xE4>"])
    'Ġ👍<0xE4>'
    """
    return _BYTES.sub(lambda run: _text(bytes.fromhex(run[0].replace("<0x", "").replace(">", ""))), "".join(tokens))


def is_byte(token: str) -> bool:
    """Whether a token is bytes only: it looks like a special token."""
    return _BYTES.fullmatch(token) is not None

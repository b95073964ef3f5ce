"""Checksums of bytes, as hexadecimal text."""

import hashlib


def checksum(content: bytes, size: int = 16) -> str:
    """Our own checksum, BLAKE2b with ``size`` bytes.

    >>> checksum(b"attention", size=4)
    'df1443d5'
    """
    return hashlib.blake2b(content, digest_size=size).hexdigest()


def published_checksum(content: bytes, expected: str) -> str:
    """The MD5 or SHA-256 of ``content``, whichever has the length of the published checksum ``expected``.

    >>> published_checksum(b"", "d41d8cd98f00b204e9800998ecf8427e")
    'd41d8cd98f00b204e9800998ecf8427e'
    """
    return hashlib.new(checksum_kind(expected), content, usedforsecurity=False).hexdigest()


def checksum_kind(expected: str) -> str:
    """The algorithm of a published checksum: ``"md5"`` or ``"sha256"``."""
    return "md5" if len(expected) == 32 else "sha256"

"""Theorems that a proof assistant has checked, and the claims that they decide: the table ``proofs.toml``."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal


@dataclass(frozen=True)
class Theorem:
    """A machine-checked theorem of ``proofs/``.

    Attributes:
        name: its name in the Coq file.
        file: the file in ``proofs/``.
        says: the theorem in a sentence.
        proves: ids of claims that it proves wholly or in part, or whose correction it proves.
        refutes: ids of claims that it refutes as they are stated.
        functions: full names of the functions that the theorem is about.
    """

    name: str
    file: str
    says: str
    proves: tuple[str, ...] = ()
    refutes: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """File and name, as Coq qualifies it: ``limits.beta_zero``."""
        return f"{self.file.removesuffix('.v')}.{self.name}"

    def word(self, claim: str) -> str:
        """What was done to a claim: "proved" (it, or what is true instead) or "refuted"."""
        return {"proves": "proved", "refutes": "refuted"}[self.does(claim)]

    def does(self, claim: str) -> Literal["proves", "refutes"]:
        """What it does to a claim."""
        return "refutes" if claim in self.refutes else "proves"


@cache
def theorems() -> tuple[Theorem, ...]:
    """Every theorem of the table, in the order of the files.

    >>> from regard.claims import theorems
    >>> [theorem.name for theorem in theorems() if "hw4-beta-zero" in theorem.proves]
    ['beta_zero']
    """
    table = tomllib.loads(files("regard.claims").joinpath("proofs.toml").read_text("utf-8"))
    return tuple(
        Theorem(
            entry["name"],
            entry["file"],
            entry["says"],
            *(tuple(entry.get(key, ())) for key in ("proves", "refutes", "functions")),
        )
        for entry in table["theorem"]
    )


def theorems_about(claim: str) -> tuple[Theorem, ...]:
    """The machine-checked theorems that refute a claim as it is stated, then those that prove it or what is true instead.

    >>> [(found.title, found.does("hw4-beta-one")) for found in theorems_about("hw4-beta-one")]
    [('counterexamples.beta_one_picks_nothing', 'refutes'), ('limits.beta_to_infinity', 'proves')]
    """
    found = [theorem for theorem in theorems() if claim in theorem.refutes or claim in theorem.proves]
    return tuple(sorted(found, key=lambda theorem: claim not in theorem.refutes))

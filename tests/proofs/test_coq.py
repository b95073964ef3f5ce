"""Coq accepts every proof, nothing rests on more than the allowed assumptions, and a wrong number or proof is refused."""

import re

import pytest

pytestmark = [pytest.mark.coq, pytest.mark.slow]

# mathcomp-analysis: the three classical axioms.
CLASSICAL = frozenset(
    {
        "boolp.propositional_extensionality",
        "boolp.functional_extensionality_dep",
        "boolp.constructive_indefinite_description",
    }
)
# Coq's own real numbers, on which Flocq and the interval tactic work.
REALS = frozenset(
    {
        "ClassicalDedekindReals.sig_not_dec",
        "ClassicalDedekindReals.sig_forall_dec",
        "FunctionalExtensionality.functional_extensionality_dep",
        "Classical_Prop.classic",
        "Epsilon.epsilon_statement",
    }
)
MACHINE = re.compile(r"(PrimInt63|Uint63)\.\w+")  # machine integers
# Which file may rest on what; all others on the three classical axioms. Files with one list are asked together.
ALLOWED = {
    "product.v": frozenset(),
    "borders.v": frozenset(),
    "rounding.v": REALS,
    "exponential.v": CLASSICAL | REALS,
    "enclosure.v": CLASSICAL | REALS,
    "certificates.v": CLASSICAL | REALS | {"machine integers"},
}


def allowed(file: str) -> frozenset[str]:
    return ALLOWED.get(file, CLASSICAL)


def assumed(printed: str) -> set[str]:
    """The names that ``Print Assumptions`` lists."""
    if "Closed under the global context" in printed:
        return set()
    assert "Axioms:" in printed, printed
    return set(re.findall(r"^([A-Za-z_][\w.']*)\s*(?=$|:)", printed.partition("Axioms:")[2], re.MULTILINE))


def beyond(names: frozenset[str], printed: str) -> set[str]:
    """Assumptions that are not among the allowed ones."""
    found = assumed(printed) - names
    return {name for name in found if not ("machine integers" in names and MACHINE.fullmatch(name))}


def question(statements: list[tuple[str, str]]) -> str:
    """Coq's answer to this is what these statements, as (file, name), rest on together."""
    modules = sorted({file.removesuffix(".v") for file, _ in statements})
    everything = ", ".join(f"@{file.removesuffix('.v')}.{name}" for file, name in statements)
    return (
        f"From regard Require {' '.join(modules)}.\nDefinition everything := ({everything}).\n"
        "Print Assumptions everything.\n"
    )


@pytest.mark.parametrize("names", sorted({CLASSICAL, *ALLOWED.values()}, key=sorted), ids=len)
def test_no_theorem_assumes_more_than_its_file_may(coqc, read, names: frozenset[str]) -> None:
    files = [file for file in read.files() if allowed(file) == names]
    statements = [(file, statement.name) for file in files for statement in read.statements(file)]
    assert {file for file, _ in statements} == set(files) != set()
    accepted, said = coqc(question(statements))
    assert accepted, said
    assert beyond(names, said) == set(), files


def test_an_unproved_lemma_and_an_axiom_show(coqc) -> None:
    head = "From regard Require Import softmax.\n"
    for text, name in (
        ("Lemma wrong : 1 = 2. Proof. Admitted.", "wrong"),
        ("Axiom wrong : 1 = 2.", "wrong"),
        ("Parameter number : nat.\nLemma wrong : number = number. Proof. reflexivity. Qed.", "number"),
    ):
        accepted, said = coqc(f"{head}{text}\nPrint Assumptions wrong.\n")
        assert accepted, said
        assert beyond(CLASSICAL, said) == {name}


def test_a_wrong_number_is_refused(coqc, read) -> None:
    text = read.source("certificates.v")
    head, _, rest = text.partition("(** α = 1 *)\n")
    first = re.match(r"Theorem T_1 : (\S+) <= T 1 <= (\S+)\.\nProof\. .*? Qed\.\n", rest)
    assert first is not None
    prelude = head.partition("(** α")[0]
    assert coqc(prelude + first[0], "right")[0]
    wrong = first[0].replace(first[1], first[2].replace("e", "1e"), 1).replace(f"<= {first[2]}", "<= 1")
    assert not coqc(prelude + wrong, "wrong")[0]


def test_a_wrong_theorem_is_refused(coqc) -> None:
    right = "by rewrite /leak prodr_const card_ord."
    head = (
        "From mathcomp Require Import all_ssreflect all_algebra.\nFrom mathcomp.analysis Require Import reals.\n"
        "From regard Require Import tail leak.\nImport GRing.Theory.\nLocal Open Scope ring_scope.\n"
        "Lemma two (R : realType) (a : R) : leak (fun _ : 'I_2 => a) = {} * (1 - (1 / (1 + tail a)) ^+ 2).\n"
        f"Proof. {right} Qed.\n"
    )
    accepted, said = coqc(head.format("2"), "right")
    assert accepted, said
    assert not coqc(head.format("1"), "wrong")[0]

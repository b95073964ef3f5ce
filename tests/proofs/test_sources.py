"""What the proofs say, read as text: finished, with a sentence above every theorem, in step with the table and the code."""

import importlib
import operator
import re
import tomllib
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from pathlib import Path

import pytest
import torch
from torch import nn

from regard.claims import Theorem, all_claims, theorems, theorems_about, verify
from regard.convert import conv_to_attention
from regard.functional._taps import shift_leak, tail

ROOT = Path(__file__).parents[2]
PROOFS = ROOT / "proofs"
ULPS = 64 * 2**-53  # what float64 may add to a sum of a few dozen terms


def test_every_file_is_built_and_finished(read) -> None:
    assert sorted(read.files()) == sorted(path.name for path in PROOFS.glob("*.v"))
    for file in read.files():
        assert read.unfinished(read.source(file)) == [], file


@pytest.mark.parametrize(
    "planted",
    [
        "Lemma planted : False. Proof. Admitted.",
        "Lemma planted : False. Proof. admit. Qed.",
        "Axiom planted : False.",
        "Parameter planted : nat.",
        "Parameters (planted : nat).",
        "Conjecture planted : False.",
        "Hypothesis planted : False.",
        "Variable planted : nat.",
        "Unset Guard Checking.",
    ],
)
def test_an_unfinished_proof_is_seen(read, planted: str) -> None:
    assert read.unfinished(f"{read.source('leak.v')}\n{planted}\n")
    assert read.unfinished(f"{read.source('leak.v')}\n(* {planted} *)\n") == []


def test_a_sentence_stands_above_every_theorem(read) -> None:
    found = [statement for file in read.files() if file != "certificates.v" for statement in read.theorems(file)]
    assert len(found) > 60
    names = [statement.name for statement in found]
    assert len(names) == len(set(names)), "a theorem's name is its address on the page"
    for statement in found:
        says = read.sentence(statement)
        assert says, f"{statement.file}: {statement.name} has no sentence above it"
        assert says.endswith("."), f"{statement.file}: {statement.name}"


def test_files_hold_one_idea(read) -> None:
    for file in read.files():
        text = read.source(file)
        assert text.startswith("(** * "), file
        assert file == "certificates.v" or len(text.splitlines()) <= 400, file
        assert max(map(len, text.splitlines())) <= 130, file


def mismatches(read, table: tuple[Theorem, ...]) -> list[str]:
    """What the table says of theorems that the files do not."""
    stated = {
        (file, statement.name): read.sentence(statement) for file in read.files() for statement in read.theorems(file)
    }
    wrong = []
    for theorem in table:
        if (theorem.file, theorem.name) not in stated:
            wrong.append(f"there is no {theorem.title}")
        elif stated[theorem.file, theorem.name] != theorem.says:
            wrong.append(f"{theorem.title} says another thing")
    return wrong


def test_the_table_is_in_step_with_the_files(read) -> None:
    assert len(theorems()) == len({theorem.title for theorem in theorems()}) > 40
    assert mismatches(read, theorems()) == []
    assert mismatches(read, (Theorem("gone", "leak.v", "It went."),)) == ["there is no leak.gone"]
    assert mismatches(read, (Theorem("leak_ge0", "leak.v", "It went."),)) == ["leak.leak_ge0 says another thing"]


def test_the_table_is_in_step_with_the_claims(read) -> None:
    verdicts = {claim.id: claim.verdict for claim in all_claims()}
    for theorem in theorems():
        assert set(theorem.proves) | set(theorem.refutes) <= set(verdicts), theorem.title
        assert not set(theorem.proves) & set(theorem.refutes)
        for claim in theorem.refutes:
            assert verdicts[claim] != "holds", f"{theorem.title} refutes {claim}, which holds"
    # A counterexample begins with the claim that it refutes.
    for statement in read.theorems("counterexamples.v"):
        claim = statement.says.partition(":")[0]
        assert claim in next(theorem for theorem in theorems() if theorem.name == statement.name).refutes
    assert len({claim for theorem in theorems() for claim in theorem.refutes}) >= 6


def test_the_functions_of_the_table_exist() -> None:
    assert len({name for theorem in theorems() for name in theorem.functions}) > 10
    for theorem in theorems():
        for name in theorem.functions:
            assert resolved(name), f"{theorem.title}: there is no {name}"
    assert not resolved("regard.functional.no_such_thing")


def resolved(name: str) -> bool:
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        try:
            reduce(getattr, parts[cut:], module)
        except AttributeError:
            return False
        return True
    return False


def test_a_claim_knows_its_theorems() -> None:
    row = verify("a6-permutation")[0]
    assert [theorem.does(row.claim.id) for theorem in row.proved] == ["refutes", "proves", "proves"]
    assert row.as_json()["proved"][0] == {
        "theorem": "counterexamples.not_invariant",
        "does": "refutes",
        "says": theorems_about("a6-permutation")[0].says,
    }
    assert verify("a6-gelu")[0].as_json()["proved"] == []


def test_the_certificates_are_what_the_program_writes(certificates) -> None:
    for name, text in (("certificates.v", certificates.coq()), ("certificates.toml", certificates.toml())):
        assert (PROOFS / name).read_text("utf-8") == text, "run python proofs/certificates.py"


ROWS = tomllib.loads((PROOFS / "certificates.toml").read_text("utf-8"))


def test_the_table_of_numbers_is_what_coq_certified(read) -> None:
    """Number by number: the bounds of the table are those of the theorems."""
    proved = dict(re.findall(r"^Theorem (\w+) : (\S+ <= .*? <= \S+)\.$", read.source("certificates.v"), re.MULTILINE))
    listed = {}
    for row in ROWS["row"]:
        for key, pair in row.items():
            if key != "alpha":
                listed[f"{key}_{row['alpha'].replace('/', '_')}"] = pair
    assert set(listed) == set(proved)
    for name, (low, high) in listed.items():
        assert proved[name].startswith(f"{low} <= ")
        assert proved[name].endswith(f" <= {high}")


def gamma(terms: int) -> float:
    """The relative error of a sum of that many products in float64, in any order."""
    unit = torch.finfo(torch.float64).eps / 2
    return terms * unit / (1 - terms * unit)


def within(value: float, pair: list[str]) -> bool:
    """A float64 result lies between the certified bounds, up to its own rounding."""
    low, high = (Decimal(number) for number in pair)
    slack = Decimal(ULPS) * high
    return low - slack <= Decimal(value) <= high + slack


@pytest.mark.parametrize("row", ROWS["row"], ids=operator.itemgetter("alpha"))
def test_the_librarys_formulas_lie_within_the_certified_numbers(row) -> None:
    alpha = float(Fraction(row["alpha"]))
    t = tail(alpha)
    assert within(t, row["T"])
    assert within(t / (1 + t), row["elsewhere"])
    for axes in (1, 2, 3):
        assert within(shift_leak([alpha] * axes), row[f"leak{axes}"])
    # The two are a factor of two apart, and no other constant would do.
    assert within(2 * t / (1 + t), row["leak1"])
    assert not within(t / (1 + t), row["leak1"])
    assert not within(shift_leak([alpha]) * (1 + 1e-13), row["leak1"])


@pytest.mark.parametrize("row", ROWS["row"], ids=operator.itemgetter("alpha"))
def test_a_converted_layer_has_the_certified_leak_and_error(row) -> None:
    weight_norm, input_norm = (Fraction(ROWS[name]) for name in ("weight_norm", "input_norm"))
    conv = nn.Conv2d(2, 3, 2, bias=False, padding=1).double()
    with torch.no_grad():
        conv.weight.zero_()
        conv.weight[0, 0, 0, 0] = 1.0
        conv.weight[1, :, 0, 1] = torch.tensor([-2.0, 1.0])
        conv.weight[1, 1, 1, 1] = -float(weight_norm - 3)
    x = torch.randn(1, 2, 5, 6).double().clamp(-2, 2)
    x[0, 1, 2, 3] = -float(input_norm)
    layer = conv_to_attention(conv)
    layer.alpha = float(Fraction(row["alpha"]))
    assert within(layer.leak, row["leak2"])
    bound = layer.error_bound(x)
    low, high = (float(Decimal(number)) for number in row["error"])
    rounds = gamma(200) * (float(weight_norm * input_norm) + high)  # more terms than it has
    assert low * (1 - ULPS) <= bound <= high * (1 + ULPS) + rounds
    with torch.no_grad():
        assert (layer(x) - conv(x)).abs().max().item() <= bound


def test_the_page_states_no_theorem_of_its_own(read) -> None:
    page = (ROOT / "docs" / "theory" / "proofs.md").read_text("utf-8")
    assert page.count("<!-- theorems -->") == 1
    assert not re.search(r"^\s*(Theorem|Lemma|Corollary)\b", page, re.MULTILINE)
    for file in re.findall(r"`(\w+\.v)`", page):
        assert file in read.files()


def test_the_readme_lists_every_file(read) -> None:
    assert re.findall(r"^\| `(\w+\.v)` \|", (PROOFS / "README.md").read_text("utf-8"), re.MULTILINE) == read.files()


def test_ci_and_readme_install_the_same_packages() -> None:
    names = re.compile(r"\bcoq libcoq-[\w-]+(?: libcoq-[\w-]+)*")
    script, readme = ((ROOT / path).read_text("utf-8") for path in (".ci/install-packages", "proofs/README.md"))
    assert names.findall(script) == names.findall(readme) != []

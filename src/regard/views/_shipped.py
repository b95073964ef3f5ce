"""Runs that come with the package: an image network and two text networks, their weights in float16."""

from pathlib import Path

from regard.support.checks import check_choice

FOLDER = Path(__file__).parent / "shipped"
NAMES = ("cifar10-small", "case-transformer", "induction")  # names of recipes; scripts/pack_example.py made the runs


def shipped_run(name: str) -> Path:
    """The folder of a run that comes with the package, for ``regard.load_run``.

    >>> from regard.views import shipped_run
    >>> regard.load_run(shipped_run("induction")).recipe.network.encoder_depth
    0
    """
    check_choice("name", name, NAMES)
    return FOLDER / name

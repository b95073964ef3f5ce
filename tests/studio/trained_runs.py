"""Runs to look at: five small ones of each kind, trained for a few steps in a second or two."""

from dataclasses import replace
from pathlib import Path

import regard
from regard import recipes
from regard.training import ImageTask

NAMES = {
    "gaussian": "demo",
    "vit": "fashion-vit",
    "case-rnn": "case-rnn-attention",
    "case-transformer": "case-transformer",
    "text": "text-mlm",
}


def train_runs(folder: Path) -> Path:
    for name, recipe_name in NAMES.items():
        recipe = recipes.get(recipe_name).smoke()
        if isinstance(recipe.task, ImageTask):
            recipe = replace(recipe, task=replace(recipe.task, limit=16))
        regard.train(recipe, folder=folder / name, accelerator="cpu", tensorboard=False, progress=False)
    return folder

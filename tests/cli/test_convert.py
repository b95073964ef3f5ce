"""regard convert, as a person would call it."""

import json

import pytest
import torch

import regard
from regard.cli import main
from regard.convert import convert_network, load_converted, save_converted
from regard.models import ResNet18


def run(words):
    return main(["convert", *words])


@pytest.fixture
def checkpoint(tmp_path):
    model = ResNet18(num_classes=3, width=4).eval()
    model.save_pretrained(tmp_path / "resnet")
    return model, tmp_path


def test_converts_a_folder_prints_the_table_and_saves(checkpoint, capsys):
    model, folder = checkpoint
    arguments = [str(folder / "resnet"), "--input", "3", "32", "32", "--output", str(folder / "out")]
    assert run([*arguments, "--json", str(folder / "new" / "report.json")]) == 0
    printed = capsys.readouterr().out
    assert "20 of 20 layers became attention" in printed
    assert "layer1.0.conv1" in printed
    rows = json.loads((folder / "new" / "report.json").read_text())["rows"]
    assert all(row["error"] <= row["bound"] for row in rows)
    again = load_converted(folder / "out")
    assert not any(isinstance(module, torch.nn.Conv2d) for module in again.modules())
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(again(x), model(x), atol=1e-5, rtol=1e-4)


def test_trained_on_weights_are_what_is_loaded(checkpoint, capsys):
    model, folder = checkpoint
    converted, report = convert_network(model)
    with torch.no_grad():
        converted.conv1.weight.mul_(2)
    save_converted(model, converted, report, folder / "trained")
    assert torch.equal(load_converted(folder / "trained").conv1.weight, 2 * model.conv1.weight)


def test_where_nothing_converts_it_points_the_other_way():
    heads = torch.nn.Sequential(torch.nn.Linear(8, 8), regard.GaussianAttention(8, 2))
    assert "no convolution but 1 layer of attention; the other way is --to convolution" in str(
        convert_network(heads)[1]
    )
    plain = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Conv2d(2, 2, 3))
    back = convert_network(plain, "convolution")[1]
    assert "no attention but 2 layers of convolution; the other way is --to attention" in str(back)
    assert "--to" not in str(convert_network(torch.nn.Linear(2, 2))[1])


@pytest.mark.usefixtures("user_errors")
def test_a_wrong_folder_is_said_in_one_line(tmp_path, capsys):
    assert run([str(tmp_path / "nothing")]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert run([str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match="holds no converted network"):
        load_converted(tmp_path)


def test_a_converted_folder_is_read_as_what_it_holds(checkpoint, capsys):
    _, folder = checkpoint
    assert run([str(folder / "resnet"), "--output", str(folder / "out")]) == 0
    capsys.readouterr()
    assert run([str(folder / "out"), "--to", "convolution"]) == 0
    assert "20 of 20 layers became convolution" in capsys.readouterr().out
    assert run([str(folder / "out"), "--to", "convolution", "--output", str(folder / "again")]) == 2
    assert "holds a converted network already" in capsys.readouterr().err


def test_the_folder_of_a_run_keeps_its_one_network(tmp_path, capsys):
    recipe = regard.recipes.get("resnet18").smoke()
    trained = regard.train(recipe, folder=tmp_path / "run", accelerator="cpu", tensorboard=False, progress=False)
    assert run([str(trained.folder), "--output", str(trained.folder)]) == 2
    assert "is the folder of a run" in capsys.readouterr().err
    ResNet18(num_classes=3, width=4).save_pretrained(trained.folder)  # as earlier versions did
    assert run([str(trained.folder), "--json", str(tmp_path / "report.json")]) == 0
    rows = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert rows[0]["before"].startswith("Conv2d 1→")


def test_a_network_of_ones_own_is_converted_but_not_saved(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("regard.cli._convert.load", lambda *_: torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3)))
    assert run([str(tmp_path)]) == 0
    assert "1 of 1 layers became attention" in capsys.readouterr().out
    assert run([str(tmp_path), "--output", str(tmp_path / "out")]) == 2
    assert "is a Sequential; without --output the report is printed" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

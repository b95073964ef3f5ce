"""regard convert, as a person would call it."""

import json

import pytest
import torch

import regard
from regard.cli._convert import run
from regard.convert import convert_network, load_converted, save_converted
from regard.models import ResNet18


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
    assert run([str(tmp_path / "nothing")]) == 1
    assert "is not a folder" in capsys.readouterr().err
    assert run([str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match="holds no converted network"):
        load_converted(tmp_path)

"""Folders of config.json and model.safetensors: written aside, and refused with a reason where they are not right."""

import json
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import regard
from regard.models import ImageEncoder, Pretrained, ResNet18


@pytest.fixture
def folder(tmp_path):
    ResNet18(3, width=2).save_pretrained(tmp_path)
    return tmp_path


def edit(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def test_the_configuration_says_how_to_build_it(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config == {
        "class": "ResNet18",
        "arguments": {"num_classes": 3, "channels": 3, "width": 2, "stem": "cifar"},
        "regard": regard.__version__,
    }
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["regard"]) == config


def test_arguments_can_be_changed_when_loading(tmp_path):
    model = ImageEncoder((8, 12), 2, 3, dim=18, depth=1, dropout=0.5)
    model.save_pretrained(tmp_path)
    loaded = ImageEncoder.from_pretrained(tmp_path, dropout=0.0)
    assert loaded.dropout.p == 0.0
    images = torch.randn(1, 3, 8, 12)
    assert torch.equal(loaded(images), model.eval()(images))


def test_saving_again_replaces_both_files(folder):
    other = ResNet18(4, width=2)
    other.save_pretrained(folder)
    assert torch.equal(ResNet18.from_pretrained(folder).fc.weight, other.fc.weight)


def test_a_failed_write_leaves_the_old_files(folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full_disk(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        ResNet18(4, width=2).save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_files_of_two_saves_are_not_taken_for_one_model(tmp_path):
    pre = ImageEncoder(8, 2, 3, dim=18, depth=1, norm="post")
    pre.save_pretrained(tmp_path / "a")
    # As if the process had died between the two files: the same shapes, another meaning.
    model = ImageEncoder(8, 2, 3, dim=18, depth=1, norm="post", dropout=0.1)
    model.save_pretrained(tmp_path / "b")
    (tmp_path / "a" / "model.safetensors").replace(tmp_path / "b" / "model.safetensors")
    with pytest.raises(ValueError, match="of two different models"):
        Pretrained.from_pretrained(tmp_path / "b")


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 0.999])
def test_a_truncated_file_is_refused(folder, kept):
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        ResNet18.from_pretrained(folder)


def test_says_what_is_missing(folder, tmp_path, user_errors):
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        ResNet18.from_pretrained(tmp_path / "nowhere")
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors does not exist"):
        ResNet18.from_pretrained(folder)
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json does not exist"):
        ResNet18.from_pretrained(folder)


def test_says_what_is_wrong_with_the_configuration(folder, user_errors):
    with pytest.raises(ValueError, match=r"holds the class ResNet18, not ImageEncoder: use ResNet18\.from_pretrained"):
        ImageEncoder.from_pretrained(folder)
    with pytest.raises(ValueError, match="ResNet18 does not take color"):
        ResNet18.from_pretrained(folder, color=True)
    with pytest.raises(ValueError, match=r"fc\.weight is \(3, 16\) instead of \(7, 16\)"):
        ResNet18.from_pretrained(folder, num_classes=7)
    edit(folder, **{"class": "ResNet99"})
    with pytest.raises(ValueError, match="names the class 'ResNet99', which is not known here"):
        Pretrained.from_pretrained(folder)
    edit(folder, **{"class": "ResNet18", "arguments": [3]})
    with pytest.raises(ValueError, match="does not contain the arguments"):
        Pretrained.from_pretrained(folder)
    (folder / "config.json").write_text('{"class": "ResNet18", ')
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        Pretrained.from_pretrained(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="does not name the model's class"):
        Pretrained.from_pretrained(folder)


def test_missing_and_unknown_weights_are_named(folder):
    state = load_file(folder / "model.safetensors")
    state["extra"] = state.pop("bn1.weight")
    save_file(state, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"without bn1\.weight; with the unknown extra"):
        ResNet18.from_pretrained(folder)


def test_a_model_that_was_changed_by_hand_is_not_saved(tmp_path):
    model = ResNet18(3, width=2)
    model.fc = nn.Linear(16, 5)
    with pytest.raises(ValueError, match="no longer what its constructor builds"):
        model.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()


class Mine(Pretrained):
    def __init__(self, sizes, *, names=None):
        super().__init__()
        self.layer = nn.Linear(*sizes)


class Wider(ResNet18):
    def __init__(self, factor=2):
        super().__init__(num_classes=3, width=2 * factor)


def test_classes_of_ones_own_can_be_saved(tmp_path):
    mine = Mine((2, 3), names={"a": [1, None]})
    mine.save_pretrained(tmp_path / "mine")
    loaded = Pretrained.from_pretrained(tmp_path / "mine")
    assert isinstance(loaded, Mine)
    assert torch.equal(loaded.layer.weight, mine.layer.weight)
    wider = Wider(factor=3)
    assert wider.config == {"factor": 3}
    wider.save_pretrained(tmp_path / "wider")
    assert type(ResNet18.from_pretrained(tmp_path / "wider")) is Wider


def test_says_which_argument_json_cannot_hold(tmp_path):
    with pytest.raises(TypeError, match=r"names is .* which config\.json cannot hold"):
        Mine((2, 3), names=torch.float32).save_pretrained(tmp_path)


def test_a_wrong_call_is_reported_in_the_constructors_own_words(user_errors):
    with pytest.raises(TypeError, match=r"__init__\(\) got an unexpected keyword argument 'color'"):
        Mine((2, 3), color=1)


def test_without_safetensors_it_says_what_to_install(folder, monkeypatch):
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'regard\[train\]'"):
        ResNet18(3, width=2).save_pretrained(folder)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'regard\[train\]'"):
        ResNet18.from_pretrained(folder)


def test_a_pickle_is_never_opened(folder):
    torch.save(ResNet18(3, width=2).state_dict(), folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        ResNet18.from_pretrained(folder)

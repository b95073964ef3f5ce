"""The command line as a whole: what it lists, what it says to mistakes, and what it never needs."""

import subprocess
import sys

import pytest

import regard
from regard import cli


def test_without_a_command_it_lists_those_that_are_there(capsys):
    assert cli.main([]) == 2
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    for name in ("demo", "train", "evaluate", "report", "bench", "data"):
        assert f"\n  {name} " in text


def test_python_runs_the_package_as_the_command():
    """For a shell whose PATH lacks the folder of scripts."""
    done = subprocess.run([sys.executable, "-m", "regard", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"regard {regard.__version__}\n")


def test_a_command_whose_module_is_absent_is_not_listed(monkeypatch, capsys):
    monkeypatch.setitem(cli.COMMANDS, "fly", "not installed")
    assert "fly" not in cli.commands()
    assert cli.main(["fly"]) == 2
    assert "no command 'fly'" in capsys.readouterr().err


def test_a_misspelt_command_is_answered_with_the_nearest(capsys):
    assert cli.main(["trian", "demo"]) == 2
    assert "did you mean train?" in capsys.readouterr().err


@pytest.fixture
def command(monkeypatch):
    """Make ``regard data`` do something else."""

    def replace(action):
        monkeypatch.setattr("regard.cli._data.run", action)

    return replace


@pytest.mark.parametrize("error", [ValueError("dim must be 1 or more"), FileNotFoundError("no such run")])
def test_what_a_person_can_mend_is_a_message(command, capsys, monkeypatch, error):
    monkeypatch.delenv("REGARD_TRACEBACK", raising=False)

    def fail(arguments):
        raise error

    command(fail)
    assert cli.main(["data"]) == 2
    assert capsys.readouterr().err == f"regard data: {error}\n"
    monkeypatch.setenv("REGARD_TRACEBACK", "1")
    with pytest.raises(type(error)):
        cli.main(["data"])


def test_a_missing_package_is_named_with_what_installs_it(command, capsys, monkeypatch):
    monkeypatch.delenv("REGARD_TRACEBACK", raising=False)

    def fail(arguments):
        raise ModuleNotFoundError("No module named 'rich'", name="rich.table")

    command(fail)
    assert cli.main(["data"]) == 1
    assert capsys.readouterr().err == "regard data: this command needs rich: pip install 'regard[all]'\n"


def test_a_mistake_of_ours_keeps_its_stack_trace(command):
    def fail(arguments):
        raise ZeroDivisionError

    command(fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(["data"])


def test_ctrl_c_is_no_stack_trace(command, capsys):
    def stop(arguments):
        raise KeyboardInterrupt("stopped at step 5, and saved there. To go on: …")

    command(stop)
    assert cli.main(["data"]) == 130
    assert "To go on" in capsys.readouterr().err


def test_training_from_python_needs_neither_tyro_nor_the_command_line():
    script = (
        "import sys; sys.modules['tyro'] = None\n"
        "import regard, regard.recipes, regard.training\n"
        "regard.recipes.get('cifar10-speedrun'); regard.train; regard.load_run\n"
        "regard.training.train_seeds, regard.training.write_result\n"
        "assert not any(name.startswith('regard.cli') for name in sys.modules)\n"
        "assert 'lightning_fabric' not in sys.modules, 'the engine is imported when training starts'"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_one_module_imports_the_engine():
    from pathlib import Path

    import regard

    sources = Path(regard.__file__).parent.rglob("*.py")
    found = [
        path.name for path in sources if "lightning" in path.read_text(encoding="utf-8").replace("lightning-fabric", "")
    ]
    assert found == ["_fabric.py"]

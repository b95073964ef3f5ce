"""What the guide says about several machines runs, as far as one machine allows: torchrun, and SLURM's variables."""

import json
import re
import shlex
import subprocess
import sys

import pytest

from regard.training._fabric import launched_by

# Stands in for SLURM's srun: two nodes with one task each, both on this machine; the worst exit code is its own.
SRUN = """#!/bin/bash
processes=()
for node in 0 1; do
  SLURM_PROCID=$node SLURM_NODEID=$node SLURM_LOCALID=0 "$@" &
  processes+=($!)
done
code=0
for process in "${processes[@]}"; do wait "$process" || code=$?; done
exit $code
"""


@pytest.fixture(scope="module")
def guide(root):
    return (root / "docs/guides/machines.md").read_text("utf-8")


@pytest.fixture(scope="module")
def sbatch(root):
    return root / "scripts/slurm/train.sbatch"


@pytest.fixture(scope="module")
def directives(sbatch):
    return dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", sbatch.read_text("utf-8"), re.MULTILINE))


def _commands(text, name):
    """The commands of the guide that begin with this word, backslashes at line ends joined."""
    joined = text.replace("\\\n", " ")
    return [shlex.split(line) for line in joined.splitlines() if line.startswith(f"{name} ")]


def _check_run(folder, processes):
    summary = json.loads((folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, summary["steps"] + 1))
    assert summary["hardware"].endswith(f"{processes} threads")  # one thread in each process


def test_the_torchrun_command_runs_with_two_processes(guide, tmp_path, environment):
    command = next(words for words in _commands(guide, "torchrun") if "--standalone" in words)
    assert command[command.index("--nproc-per-node") + 1] == "2"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command[1:], "--no-tensorboard"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _check_run(tmp_path / command[command.index("--folder") + 1], processes=2)


def test_the_command_for_several_nodes_is_one_that_torchrun_takes(guide):
    from torch.distributed.run import get_args_parser

    command = next(words for words in _commands(guide, "torchrun") if "--nnodes" in words)
    chosen = get_args_parser().parse_args(command[1:])
    assert chosen.rdzv_backend == "c10d"
    assert chosen.rdzv_endpoint
    assert (chosen.module, chosen.training_script) == (True, "regard.cli")
    assert chosen.training_script_args[0] == "train"
    local, nodes = int(chosen.nproc_per_node), int(chosen.nnodes)
    variables = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": str(local * nodes), "LOCAL_WORLD_SIZE": str(local)}
    assert launched_by(variables) == (local, nodes)


def test_the_slurm_script_asks_for_what_the_engine_reads(directives, sbatch, monkeypatch):
    from lightning_fabric.plugins.environments import SLURMEnvironment

    nodes, tasks = int(directives["nodes"]), int(directives["ntasks-per-node"])
    assert "ntasks" not in directives  # which the engine refuses
    assert directives["job-name"] not in ("bash", "interactive")  # which would hide SLURM from it
    assert directives["gpus-per-node"] == str(tasks)
    for name, value in {
        "NTASKS": nodes * tasks, "NTASKS_PER_NODE": tasks, "NNODES": nodes, "JOB_NAME": directives["job-name"],
        "JOB_ID": 4242, "PROCID": 11, "LOCALID": 3, "NODEID": 1, "NODELIST": "node[07-08]",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    assert launched_by() == (tasks, nodes)
    assert SLURMEnvironment.detect()
    environment = SLURMEnvironment()
    environment.validate_settings(num_devices=tasks, num_nodes=nodes)
    assert (environment.world_size(), environment.global_rank(), environment.local_rank()) == (nodes * tasks, 11, 3)
    assert (environment.main_address, environment.main_port) == ("node07", 19242)
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", str(tasks - 1))
    with pytest.raises(ValueError, match="does not match"):
        environment.validate_settings(num_devices=tasks, num_nodes=nodes)


def test_the_slurm_script_trains_in_two_tasks(sbatch, directives, tmp_path, environment):
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(SRUN)
    srun.chmod(0o755)
    variables = {
        "JOB_ID": "4243", "JOB_NAME": directives["job-name"], "NTASKS": "2", "NTASKS_PER_NODE": "1", "NNODES": "2",
        "NODELIST": "127.0.0.1", "CPUS_PER_TASK": "1",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", str(sbatch), "demo", "--smoke", "--accelerator", "cpu", "--no-tensorboard"],
        cwd=tmp_path,
        env={
            **environment,
            "PATH": f"{srun.parent}:{environment['PATH']}",
            **{f"SLURM_{name}": value for name, value in variables.items()},
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    _check_run(tmp_path / "runs" / "demo", processes=2)


def test_without_a_recipe_the_slurm_script_says_what_to_write(sbatch, environment):
    done = subprocess.run(["bash", str(sbatch)], env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert "say which recipe" in done.stderr

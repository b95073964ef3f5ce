"""What every test shares: shapes checked at run time, fixed seeds, and skips that say their reason."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import jaxtyping
import pytest

# On some processors torch's bfloat16 products pick an instruction set that the machine then refuses (SIGILL).
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Before regard is imported: every annotated signature is checked, in every test but those of tests/compiled, which
# torch.compile and torch.export could not trace then. `make test` runs those on their own, with REGARD_TYPECHECK=0.
TYPECHECK = os.environ.get("REGARD_TYPECHECK", "1") != "0"
if TYPECHECK:
    jaxtyping.install_import_hook("regard", "beartype.beartype")

import torch  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

settings.register_profile(
    "regard",
    deadline=None,  # timings on a shared machine say nothing
    max_examples=25,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("regard")

COQ_LIBRARIES = ("mathcomp/analysis", "mathcomp/algebra_tactics", "mathcomp/zify", "Interval")


def has_coq() -> bool:
    """Coq, and the libraries that the proofs use."""
    if shutil.which("coqc") is None or shutil.which("make") is None:
        return False
    where = subprocess.run(["coqc", "-where"], capture_output=True, text=True, timeout=60).stdout.strip()
    return all((pathlib.Path(where) / "user-contrib" / library).is_dir() for library in COQ_LIBRARIES)


BROWSERS = ("chromium", "chromium-browser", "google-chrome")
NEEDS = {
    "gpu": (torch.cuda.is_available, "needs an NVIDIA GPU"),
    "browser": (lambda: any(map(shutil.which, BROWSERS)), "needs a Chromium on the PATH"),
    "node": (lambda: shutil.which("npm") is not None, "needs Node.js and npm"),
    "coq": (lambda: has_coq(), "needs Coq with mathcomp-analysis, algebra-tactics and interval (proofs/README.md)"),
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run; ``REGARD_REQUIRE=browser,node,coq`` turns such a skip into a failure."""
    for item in items:
        if TYPECHECK and "compiled" in item.path.parts:
            item.add_marker(pytest.mark.skip(reason="run it with REGARD_TYPECHECK=0, as make test does"))
    required = set(filter(None, os.environ.get("REGARD_REQUIRE", "").split(",")))
    for need, (present, reason) in NEEDS.items():
        marked = [item for item in items if item.get_closest_marker(need)]
        if marked and not present():
            if need in required:
                pytest.exit(f"{len(marked)} tests cannot run: {reason}, and REGARD_REQUIRE asks for it", returncode=1)
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))

    if config.pluginmanager.hasplugin("rerunfailures"):  # a real browser on a busy machine; the summary names repeats
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def user_errors():
    """Run as a user would, without the run-time shape checks, so that our own error messages are what is seen."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def browser():
    """One Chromium for all tests of a process: playwright cannot be started a second time beside itself."""
    from playwright.sync_api import sync_playwright

    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        path = next(filter(None, map(shutil.which, BROWSERS)))
        browser = playwright.chromium.launch(executable_path=path, args=options)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def npm(tmp_path_factory, pytestconfig):
    """``npm("run", "check")`` in the front end, with the packages of its lock file installed once for all processes."""
    from filelock import FileLock

    frontend = pytestconfig.rootpath / "frontend"

    def run(*words, **environment):
        options = {"cwd": frontend, "env": {**os.environ, **environment}, "timeout": 300}
        done = subprocess.run(["npm", *words], capture_output=True, text=True, **options)
        assert done.returncode == 0, f"npm {' '.join(words)}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    lock, installed = frontend / "package-lock.json", frontend / "node_modules" / ".package-lock.json"
    with FileLock(tmp_path_factory.getbasetemp().parent / "regard-npm.lock"):
        if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
            run("ci", "--no-audit", "--no-fund")
            installed.touch()
    return run


@pytest.fixture(scope="session")
def timm():
    """timm, to compare with. It imports torchvision, of which a build without its compiled operators will do."""
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed (extra: parity)")
    kept = []  # a library takes its operators along when it goes
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        kept.append(torch.library.Library("torchvision", "DEF"))
        for operator in ("nms", "qnms"):
            kept[0].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    yield importlib.import_module("timm")
    kept.clear()


@pytest.fixture(scope="session")
def transformers(timm):
    """Hugging Face transformers (which import torchvision too, so timm's stand-in for its operators comes first)."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed (extra: parity)")
    module = importlib.import_module("transformers")
    module.logging.set_verbosity_error()
    return module


@pytest.fixture
def images():
    return torch.randn(2, 3, 32, 32)


@pytest.fixture
def tokens():
    return torch.randint(0, 50, (2, 7))

"""regard: see, prove and speed up attention.

Every public name is loaded on first use. So ``import regard`` is quick, and a missing extra is reported only where it
is needed.

>>> import regard
>>> regard.softargmax(torch.tensor([0.0, 0.0]))
tensor([0.5000, 0.5000])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard._version import __version__ as __version__

# name -> module that defines it
_NAMES = {
    "GaussianAttention": "regard.layers",
    "MultiHeadAttention": "regard.layers",
    "attention": "regard.functional",
    "attention_to_conv": "regard.convert",
    "capture": "regard.maps",
    "conv_to_attention": "regard.convert",
    "convert_network": "regard.convert",
    "cost": "regard.analysis",
    "edit": "regard.analysis",
    "find_heads": "regard.analysis",
    "gaussian_attention": "regard.functional",
    "separable_attention": "regard.functional",
    "load_run": "regard.training",
    "locality": "regard.analysis",
    "plan_for": "regard.functional",
    "prune_heads": "regard.analysis",
    "relevance": "regard.analysis",
    "replace_heads": "regard.analysis",
    "rollout": "regard.analysis",
    "show": "regard.views",
    "softargmax": "regard.functional",
    "train": "regard.training",
    "verify": "regard.claims",
}
_MODULES = {
    "analysis",
    "claims",
    "convert",
    "course",
    "data",
    "figures",
    "functional",
    "layers",
    "maps",
    "models",
    "recipes",
    "reference",
    "studio",
    "training",
    "views",
}

if TYPE_CHECKING:
    from regard import analysis as analysis
    from regard import claims as claims
    from regard import convert as convert
    from regard import course as course
    from regard import data as data
    from regard import figures as figures
    from regard import functional as functional
    from regard import layers as layers
    from regard import maps as maps
    from regard import models as models
    from regard import recipes as recipes
    from regard import reference as reference
    from regard import studio as studio
    from regard import training as training
    from regard import views as views
    from regard.analysis import cost as cost
    from regard.analysis import edit as edit
    from regard.analysis import find_heads as find_heads
    from regard.analysis import locality as locality
    from regard.analysis import prune_heads as prune_heads
    from regard.analysis import relevance as relevance
    from regard.analysis import replace_heads as replace_heads
    from regard.analysis import rollout as rollout
    from regard.claims import verify as verify
    from regard.convert import attention_to_conv as attention_to_conv
    from regard.convert import conv_to_attention as conv_to_attention
    from regard.convert import convert_network as convert_network
    from regard.functional import attention as attention
    from regard.functional import gaussian_attention as gaussian_attention
    from regard.functional import plan_for as plan_for
    from regard.functional import separable_attention as separable_attention
    from regard.functional import softargmax as softargmax
    from regard.layers import GaussianAttention as GaussianAttention
    from regard.layers import MultiHeadAttention as MultiHeadAttention
    from regard.maps import capture as capture
    from regard.training import load_run as load_run
    from regard.training import train as train
    from regard.views import show as show


def __getattr__(name: str) -> Any:
    if name not in _NAMES and name not in _MODULES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}; it has {', '.join(__dir__())}")
    try:
        module = import_module(_NAMES.get(name, f"regard.{name}"))
    except ModuleNotFoundError as error:
        package = (error.name or "regard").partition(".")[0]
        if package == "regard":
            raise
        raise ImportError(f"regard.{name} needs {package}: pip install 'regard[all]'") from error
    value = getattr(module, name) if name in _NAMES else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*_NAMES, *_MODULES, "__version__"})

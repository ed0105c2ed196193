"""Pickles of Python and checkpoints of PyTorch, and what Python's own modules say of them.

    python golden/gen/checkpoint/pickles.py internal/format/pickle/testdata

Opcodes are counted by pickletools.genops. Names are those that a pickle.Unpickler asks find_class for while it loads the
file, which is safe here: the files are made above. Tensors are what torch.load returns, under the keys that lead to them.
"allowed" is what torch.load(weights_only=True) lets a file name. hostile_*.pkl are never loaded; their names come from the source below.
"""
import collections
import io
import json
import os
import pickle
import pickletools
import random
import sys
import zipfile

import numpy
import torch
import torch._weights_only_unpickler
from torch import nn

out = sys.argv[1]
os.makedirs(out, exist_ok=True)
torch.manual_seed(7)
random.seed(7)
numpy.random.seed(7)


class Recorder(pickle.Unpickler):
    """Records the names that are asked for. Tensors and storages become placeholders."""

    def __init__(self, f):
        super().__init__(f)
        self.names = []

    def find_class(self, module, name):
        if [module, name] not in self.names:
            self.names.append([module, name])
        return (lambda *a: None) if name.startswith("_rebuild") else super().find_class(module, name)

    def persistent_load(self, pid):
        kind, cls, key, location, numel = pid[:5]
        return torch.storage.TypedStorage(wrap_storage=torch.UntypedStorage(0), dtype=torch.uint8, _internal=True)


def opcodes(data):
    n = collections.Counter(op.name for op, _, _ in pickletools.genops(data))
    return dict(sorted(n.items()))


def flatten(prefix, x, into):
    if isinstance(x, torch.Tensor):
        into.append({"name": prefix, "dtype": str(x.dtype).removeprefix("torch."), "shape": list(x.shape), "strides": list(x.stride()),
                     "offset": x.storage_offset() if x.device.type != "meta" else 0, "parameter": isinstance(x, nn.Parameter)})
    elif isinstance(x, nn.Module):
        flatten(prefix, vars(x), into)
    elif isinstance(x, dict):
        for k, v in x.items():
            flatten(f"{prefix}.{k}" if prefix else str(k), v, into)
    elif isinstance(x, (list, tuple)):
        for i, v in enumerate(x):
            flatten(f"{prefix}.{i}" if prefix else str(i), v, into)
    return into


expect = {}


def save(name, obj, **kwargs):
    path = f"{out}/{name}"
    torch.save(obj, path, **kwargs)
    if zipfile.is_zipfile(path):
        z = zipfile.ZipFile(path)
        data = z.read(next(n for n in z.namelist() if n.endswith("/data.pkl")))
        storages = sum(zi.file_size for zi in z.infolist() if "/data/" in zi.filename)
        r = Recorder(io.BytesIO(data))
        r.load()
        names, codes = r.names, opcodes(data)
    else:
        names, codes, storages = None, None, None
    expect[name] = {"opcodes": codes, "globals": names, "storage_bytes": storages, "tensors": flatten("", torch.load(path, weights_only=False), [])}


def dump(name, obj, protocol):
    data = pickle.dumps(obj, protocol=protocol)
    open(f"{out}/{name}", "wb").write(data)
    r = Recorder(io.BytesIO(data))
    r.load()
    expect[name] = {"opcodes": opcodes(data), "globals": r.names, "storage_bytes": None, "tensors": []}


base = torch.arange(24, dtype=torch.float32)
save("state_dict.pt", collections.OrderedDict(
    weight=base.view(4, 6)[1:3], transposed=base.view(4, 6).t(), half=torch.ones(3, dtype=torch.float16), bf16=torch.ones(2, 2, dtype=torch.bfloat16),
    int8=torch.zeros(5, dtype=torch.int8), flag=torch.tensor(True), empty=torch.empty(0, 3), count=torch.tensor(3)))
save("legacy.pt", {"v_head.summary.weight": torch.ones(1, 16), "v_head.summary.bias": torch.zeros(1)}, _use_new_zipfile_serialization=False)
save("parameters.pt", {"p": nn.Parameter(torch.ones(2, 3)), "f8": torch.zeros(4).to(torch.float8_e4m3fn), "u16": torch.zeros(2, dtype=torch.uint16)})
save("meta.pt", {"m": torch.empty(2, 3, device="meta", dtype=torch.bfloat16)})

model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
model(torch.ones(1, 4)).sum().backward()
opt.step()
save("optimizer.pt", opt.state_dict())
save("state_dict_of_module.pt", model.state_dict())
save("scheduler.pt", torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 1.0).state_dict())
save("rng_state.pth", {"python": random.getstate(), "numpy": numpy.random.get_state(), "cpu": torch.random.get_rng_state()[:64].clone()})
save("module.pt", nn.Linear(2, 2))

plain = {"a": 1, "b": [1.5, None, True, "ü\n'\"", b"\x00\xff"], (1, 2, 3): {"c": -5, "d": 2**70, "e": (1,) * 5}, "set": {1, 2}, "frozen": frozenset([3]),
         "od": collections.OrderedDict(x=1), "complex": 1j, "bytearray": bytearray(b"xyz"), "long": "y" * 300, "big": list(range(300))}
recursive = ([], 1)  # a tuple that holds itself is made, thrown away and fetched from the memo
recursive[0].append(recursive)
for protocol in range(6):
    dump(f"plain{protocol}.pkl", plain, protocol)
    dump(f"recursive{protocol}.pkl", recursive, protocol)

# Hostile programs: as text, since nothing here may run them.
hostile = {
    "hostile_system.pkl": (b"cos\nsystem\n(S'echo x'\ntR.", [["os", "system"]]),
    "hostile_stack_global.pkl": (b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x06echo x\x94\x85\x94R\x94.", [["posix", "system"]]),
    "hostile_escaped.pkl": (b"\x80\x04S'o\\x73'\nVsy\\u0073tem\n\x93S'echo x'\n\x85R.", [["os", "system"]]),
    "hostile_inst.pkl": (b"(S'echo x'\nios\nsystem\n.", [["os", "system"]]),
    "hostile_obj.pkl": (b"(cos\nsystem\nS'echo x'\no.", [["os", "system"]]),
    "hostile_eval.pkl": (b"\x80\x02cbuiltins\neval\nq\x00(X\x03\x00\x00\x001+1tR.", [["builtins", "eval"]]),
    "hostile_memo.pkl": (b"\x80\x04\x8c\x02os\x94\x8c\x05popen\x94h\x00h\x01\x93\x8c\x01x\x85R.", [["os", "popen"]]),
    "hostile_second.pkl": (b"\x80\x02}.\x80\x02cos\nsystem\nX\x01\x00\x00\x00x\x85R.", [["os", "system"]]),
}
for name, (data, names) in hostile.items():
    open(f"{out}/{name}", "wb").write(data)
    expect[name] = {"opcodes": None, "globals": names, "storage_bytes": None, "tensors": []}

json.dump({"producer": "golden/gen/checkpoint/pickles.py", "versions": {"python": sys.version.split()[0], "torch": torch.__version__, "numpy": numpy.__version__}, "allowed": sorted(torch._weights_only_unpickler._get_allowed_globals()), "files": expect},
          open(f"{out}/EXPECT.json", "w"), indent=1)

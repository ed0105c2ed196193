"""Write what a training step computed as one file that `verify dump` reads.

A file is .safetensors, written here so that bfloat16 needs no further package: 8 bytes with the length N of a header, N
bytes of JSON (a multiple of 8), the tensors one after another. The entry "plumbline" of the header's metadata says which
step, rank and micro-batch it is, and under which options it was computed.
"""
from __future__ import annotations

import dataclasses
import enum
import json
import math
import numbers
import os
import struct
import sys
import threading
import time
import types
import warnings
from argparse import Namespace
from collections.abc import Mapping

import numpy as np

# Tensors with a value per token: their first two sizes are those of the mask. Advantages may also be one per row.
_PER_TOKEN = frozenset(
    "response_mask labels_mask response_ids logp_new logp_old logp_gen logp_ref values values_new token_rewards kl "
    "advantages returns entropy is_weights token_loss dlogp dvalues segment_ids dones".split()
)
_PER_ROW = frozenset("input_ids attention_mask prompt_len scores rewards_per_func group_id sample_id next_values".split())

_DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}
_MAX_METADATA = 1 << 20  # bytes that the reader accepts
_warned = set()


class DumpError(Exception):
    """A dump was not written. `kind` says why in one word: argument, tensor, shape, twice or write."""

    def __init__(self, kind, message):
        super().__init__(message)
        self.kind = kind


def dump(path, *, step, options=None, scalars=None, rank=None, world_size=None, micro_batch=None, micro_batches=None,
         framework=None, version=None, algorithm=None, profile=None, align=None, run=None, metadata=None, strict=False, **tensors):
    """Write one file: what one rank computed for one (micro-)batch of a step. Return its path.

    path       a folder, made if need be, in which every run has a folder of its own and the file is named after step, rank and
               micro-batch; or NAME.safetensors
    step       number of the optimiser step
    options    what the trainer was configured with, under its own names or plumbline's: a mapping, dataclass or namespace,
               such as trainer.args. Values that JSON cannot express are left out.
    scalars    logged numbers, by name
    rank       default: that of torch.distributed, of the JAX process, or of the variables RANK and WORLD_SIZE, else 0
    micro_batch   which of micro_batches (if known) this is, from 0; default: calls with the same step are counted, failed ones
               too, so that a lost one leaves a gap that verify reports
    align      response (the default of the format), shifted or unshifted
    run        name of the run; default: run- and the time of its first dump, the same for all ranks of torch.distributed. Where
               the steps begin anew, so does a run. With several ranks and nothing that joins them it must be given to be there.
    metadata   further keys of the format: compute_dtype, dlogp_scale, masked_fill, ...
    tensors    numpy, torch or JAX arrays or nested lists, on any device and of any layout, with or without gradient;
               bfloat16 stays bfloat16. None is left out, as if it were not named. Names with a slash: **{"grad/w": g}

    A dump that cannot be written (a shape that disagrees with the mask, a type that the format lacks, a second file for the
    same step, rank and micro-batch, a full disk) is a DumpError if strict, and otherwise a RuntimeWarning, one for each
    kind of reason: then None is returned and training goes on. Nothing is left of a file that could not be finished.
    """
    try:
        position = {"step": step, "rank": rank, "world_size": world_size, "micro_batch": micro_batch, "micro_batches": micro_batches}
        words = {"framework": framework, "version": version, "algorithm": algorithm, "profile": profile, "align": align, "run": run}
        return _dump(path, position, words, options, scalars, metadata, tensors)
    except Exception as e:
        if strict:
            if isinstance(e, DumpError):
                raise
            raise DumpError("argument", f"{type(e).__name__}: {e}") from e
        _warn(e)
        return None


def _warn(e):
    """One warning for each kind of reason. Where warnings are errors it is a line on stderr."""
    kind = getattr(e, "kind", type(e).__name__)
    if kind in _warned:
        return
    _warned.add(kind)
    reason = str(e) if isinstance(e, DumpError) else f"{type(e).__name__}: {e}"
    text = f"no dump was written: {reason} (said once; strict=True raises)"
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    except Warning:
        try:
            print("plumbline: " + text, file=sys.stderr)
        except Exception:
            pass


def _dump(path, position, words, options, scalars, metadata, tensors):
    tensors = {name: t for name, t in tensors.items() if t is not None}
    position = _position(position, tensors)
    run = words.pop("run")
    folder = not os.fsdecode(path).endswith(".safetensors")
    with _naming:  # threads that dump one step write one run
        if run is None and folder:
            run = _run(os.fsdecode(path), position)
        if position["micro_batch"] is None:
            position["micro_batch"] = _count(os.fsdecode(path), run, position) if folder else 0
    arrays = {name: _array(name, t) for name, t in tensors.items()}
    _agree(arrays, words["algorithm"])
    meta = {"schema": 1, **({} if run is None else {"run": str(run)}), **{k: v for k, v in position.items() if v is not None}, **{k: str(v) for k, v in words.items() if v is not None}}
    if options is not None:
        meta["options"] = _plain(options)
        if not isinstance(meta["options"], dict):
            raise DumpError("argument", f"options: {type(options).__name__} is no mapping, dataclass or namespace")
    if scalars is not None:
        meta["scalars"] = {str(k): _scalar(k, v) for k, v in scalars.items()}
    for k, v in (metadata or {}).items():
        if k in meta:
            raise DumpError("argument", f"metadata: {k} is an argument of dump")
        meta[k] = _plain(v)
    text = json.dumps(meta, allow_nan=False, ensure_ascii=False)
    size = len(text.encode())
    if size > _MAX_METADATA:
        raise DumpError("argument", f"the metadata have {size} bytes, the format allows {_MAX_METADATA}: pass fewer options")
    target = _target(path, position, run)
    _write(target, arrays, text)
    return target


def _position(p, tensors):
    """Fill in the rank, and check that all are whole numbers."""
    if p["rank"] is None:
        p["rank"], found = _rank(tensors)
        if p["world_size"] is None:
            p["world_size"] = found
    for k, least in (("step", 0), ("rank", 0), ("world_size", 1), ("micro_batch", 0), ("micro_batches", 1)):
        v = p[k]
        if v is None and k in ("world_size", "micro_batch", "micro_batches"):
            continue
        if isinstance(v, bool) or not hasattr(v, "__index__") or v.__index__() < least:
            raise DumpError("argument", f"{k}={v!r}: want a whole number of at least {least}")
        p[k] = v.__index__()
    for k, of in (("rank", "world_size"), ("micro_batch", "micro_batches")):
        if p[of] is not None and p[k] is not None and p[k] >= p[of]:
            raise DumpError("argument", f"{k}={p[k]}, but {of}={p[of]}")
    return p


def _rank(tensors):
    """This process and how many there are: (0, None) where nothing says so."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    jax = sys.modules.get("jax")
    if jax is not None and any(isinstance(t, jax.Array) for t in tensors.values()):
        return jax.process_index(), jax.process_count()
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return 0, None


def _array(name, t):
    """The tensor as (type in the format, shape, its bytes in C order and little-endian)."""
    if not name or len(name.encode()) > 1024 or any(ord(c) < 32 or ord(c) == 127 for c in name):
        raise DumpError("tensor", f"{name[:64]!r} is no name of a tensor")
    try:
        dtype, a = _numpy(name, t)
        if dtype not in _DTYPES:
            raise DumpError("tensor", f"{name}: {dtype} is no type of the format; it has {', '.join(_DTYPES)}")
        if a.dtype.byteorder == ">" or a.dtype.byteorder == "=" and sys.byteorder == "big":
            a = a.astype(a.dtype.newbyteorder("<"))
        return _DTYPES[dtype], a.shape, np.ascontiguousarray(a).reshape(-1).view(np.uint8)
    except DumpError:
        raise
    except Exception as e:  # a JAX tracer, a tensor on the meta device, ragged lists, ...
        raise DumpError("tensor", f"{name}: {type(t).__name__} cannot be read as an array: {type(e).__name__}: {str(e)[:200]}") from e


def _numpy(name, t):
    """The name of the element type, and a numpy array of the bits. torch's bfloat16 has no numpy type: int16 carries it."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(t, torch.Tensor):
        if type(t).__name__ == "DTensor":
            raise DumpError("tensor", f"{name}: is sharded (DTensor); call full_tensor() on all ranks first")
        dtype = str(t.dtype).replace("torch.", "")
        t = t.detach().to("cpu").resolve_neg().contiguous()
        if dtype == "bfloat16":
            t = t.view(torch.int16)
        elif dtype not in _DTYPES:
            return dtype, None
        return dtype, t.numpy()
    a = np.asarray(t)
    return a.dtype.name, a


def _agree(arrays, algorithm):
    """All tensors per token have the sizes of the mask, all tensors per row as many rows."""
    mask = next((m for m in ("response_mask", "labels_mask") if m in arrays), None)
    if mask is None:
        if str(algorithm).lower() in ("dpo", "kto", "bco"):
            return
        raise DumpError("argument", "response_mask is missing: the one tensor that every dump has (labels_mask for algorithm='sft')")
    shape = arrays[mask][1]
    if len(shape) != 2:
        raise DumpError("shape", f"{mask} has the shape {list(shape)}, want [B, T]")
    packed = "segment_ids" in arrays or "cu_seqlens" in arrays
    for name, (_, s, _) in arrays.items():
        per_row = name in _PER_ROW or name == "advantages" and len(s) == 1
        if per_row and not packed and s[:1] != shape[:1]:
            raise DumpError("shape", f"{name} has the shape {list(s)}, but {mask} {list(shape)}: want {shape[0]} rows")
        if name in _PER_TOKEN and not per_row and s != shape and not (name == "is_weights" and s == (shape[0], 1)):
            raise DumpError("shape", f"{name} has the shape {list(s)}, but {mask} {list(shape)}: want the same")


def _plain(v, depth=0):
    """The value as JSON has it; _Left where it has no such value."""
    if isinstance(v, enum.Enum):
        v = v.value
    if v is None or isinstance(v, (bool, str)):
        return v
    if isinstance(v, np.generic):
        v = v.item()
    if isinstance(v, bool):
        return v
    if isinstance(v, numbers.Integral):
        return int(v)
    if isinstance(v, numbers.Real):
        return float(v) if math.isfinite(v) else _Left
    if depth > 16:
        return _Left
    if dataclasses.is_dataclass(v) and not isinstance(v, type):
        v = {f.name: getattr(v, f.name, None) for f in dataclasses.fields(v)}
    elif isinstance(v, (Namespace, types.SimpleNamespace)):
        v = vars(v)
    if isinstance(v, Mapping):
        plain = {str(k): _plain(v[k], depth + 1) for k in v}
        return {k: x for k, x in plain.items() if x is not _Left}
    if isinstance(v, (list, tuple)):
        plain = [_plain(x, depth + 1) for x in v]
        return _Left if any(x is _Left for x in plain) else plain
    return _Left


_Left = object()


def _scalar(name, v):
    """A logged number; null stands for what is not finite."""
    if v is None:
        return None
    try:
        x = float(v.detach() if hasattr(v, "detach") else v)
    except Exception as e:
        raise DumpError("argument", f"scalars: {name}: {type(v).__name__} is no number: {e}") from e
    return x if math.isfinite(x) else None


def _run(folder, p):
    """The name of the run that writes into a folder; None where several ranks have no way to agree on one."""
    seen = _runs.setdefault(folder, {"step": None, "n": 0, "name": None})
    if seen["step"] is None or p["step"] < seen["step"]:
        name = time.strftime("run-%Y%m%d-%H%M%S-") + os.urandom(2).hex()
        distributed = getattr(sys.modules.get("torch"), "distributed", None)
        seen["n"] += 1
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            store = distributed.distributed_c10d._get_default_store()
            name = store.compare_set(f"plumbline {folder} {seen['n']}", "", name).decode()  # that of the first to ask
        elif (p["world_size"] or 1) > 1:
            name = None
        seen["name"] = name
    seen["step"] = p["step"]
    return seen["name"]


_runs, _naming = {}, threading.Lock()


def _count(folder, run, p):
    """How many times this step was dumped before."""
    key = (folder, run, p["rank"])
    step, n = _counts.get(key, (None, 0))
    n = n + 1 if step == p["step"] else 0
    _counts[key] = (p["step"], n)
    return n


_counts = {}


def _target(path, p, run):
    path = os.fspath(path)
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if path.endswith(".safetensors"):
        return path
    extension = os.path.splitext(path)[1]
    if extension in (".npz", ".npy", ".pt", ".bin", ".json"):
        raise DumpError("argument", f"{path}: dumps are written as .safetensors, or into a folder")
    name = f"step_{p['step']:06d}"
    if p["rank"] > 0 or (p["world_size"] or 1) > 1:
        name += f"_rank{p['rank']}"
    if p["micro_batch"] > 0 or (p["micro_batches"] or 1) > 1:
        name += f"_micro{p['micro_batch']}"
    return os.path.join(path, *([] if run is None else [str(run)]), name + ".safetensors")


def _write(target, arrays, text):
    """Write the whole file or nothing; a file that is there stays as it is."""
    width = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4}
    order = sorted(arrays, key=lambda n: (-width.get(arrays[n][0], 8), n))
    header, end = {"__metadata__": {"plumbline": text}}, 0
    for name in order:
        dtype, shape, data = arrays[name]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + data.nbytes]}
        end += data.nbytes
    head = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    folder, name = os.path.split(target)
    part = os.path.join(folder, f".{name}.{os.getpid()}.part")
    twice = DumpError("twice", f"{target} is there already: a run has one file for each step, rank and micro-batch "
                               "(micro_batch=… tells those of one step apart; a new run needs a new folder)")
    try:
        if folder:
            os.makedirs(folder, exist_ok=True)
        if os.path.lexists(target):
            raise twice
        try:
            with open(part, "wb") as f:
                f.write(struct.pack("<Q", len(head)))
                f.write(head)
                for name in order:
                    f.write(arrays[name][2])
            try:
                os.link(part, target)  # unlike a rename it never replaces what another process wrote meanwhile
            except FileExistsError:
                raise twice from None
            except OSError:  # a file system without links
                os.replace(part, target)
        finally:
            try:
                os.unlink(part)
            except OSError:
                pass
    except OSError as e:
        raise DumpError("write", f"{target}: {e.strerror or e}") from e

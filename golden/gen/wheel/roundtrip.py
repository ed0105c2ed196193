"""The module of the wheel against others: what plumbline.dump writes, safetensors' own reader gives back, bit for bit;
what verify says of golden dumps arrives as objects; what cannot be dumped is one clear error.

    python golden/gen/wheel/roundtrip.py golden/dumps

run by `make wheeltest` in an environment with the wheel, numpy, ml_dtypes and safetensors; torch and JAX are tried where
they are installed. Prints what was compared and what was not, exits 1 on the first difference.
"""
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import types
import warnings

import ml_dtypes
import numpy as np
import safetensors

import plumbline

MASK = np.ones((2, 3), bool)
done = []


def expect(condition, text):
    if not condition:
        raise SystemExit(f"roundtrip: {text}")


def read(path):
    """(metadata, {name: (dtype, shape, bytes)}) by the reader of the format's owners."""
    data = open(path, "rb").read()
    n = int.from_bytes(data[:8], "little")
    expect(n % 8 == 0, f"{path}: header of {n} bytes")
    meta = json.loads(json.loads(data[8 : 8 + n])["__metadata__"]["plumbline"])
    return meta, {name: (str(t["dtype"]), tuple(t["shape"]), bytes(t["data"])) for name, t in safetensors.deserialize(data)}


def fresh():
    return tempfile.mkdtemp(dir=ROOT)


def same(name, value, dtype, bits):
    """value, dumped, comes back as dtype with the bytes of the array bits."""
    folder = fresh()
    path = plumbline.dump(folder, step=0, response_mask=MASK, strict=True, **{name: value})
    _, tensors = read(path)
    got = tensors[name]
    want = (dtype, tuple(bits.shape), np.ascontiguousarray(bits).tobytes())
    expect(got == want, f"{name} as {type(value).__name__} {dtype}: {got[:2]} differs from {want[:2]}, or the bytes do")
    done.append(f"{type(value).__module__.split('.')[0]} {dtype}")


def fails(kind, text, call):
    """call fails with DumpError if strict; else it warns once, returns None, and leaves nothing."""
    try:
        call(strict=True)
    except plumbline.DumpError as e:
        expect(e.kind == kind and text in str(e), f"{kind}: want {text!r} in {e!r}, a {e.kind}")
    else:
        expect(False, f"{kind}: want an error with {text!r}")
    plumbline._dump._warned.clear()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        expect(call() is None and call() is None, f"{kind}: want None")
    expect(len(seen) == 1 and issubclass(seen[0].category, RuntimeWarning) and text in str(seen[0].message), f"{kind}: {len(seen)} warnings")
    expect(seen[0].filename == __file__, f"{kind}: the warning points at {seen[0].filename}")
    plumbline._dump._warned.clear()
    stderr, sys.stderr = sys.stderr, open(os.devnull, "w")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # python -W error: training goes on all the same
            expect(call() is None, f"{kind}: under -W error")
    finally:
        sys.stderr = stderr
    done.append(kind)


def numpy_arrays():
    rng = np.random.default_rng(1)
    for dtype in ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"):
        x = (rng.standard_normal((2, 3)) * 100).astype(np.int64).astype(dtype)
        name = {"bool": "BOOL"}.get(dtype) or dtype[0].replace("u", "U").upper() + "".join(c for c in dtype if c.isdigit())
        same("logp_new", x, name, x)
        same("logp_new", x.T.copy().T, name, x)  # Fortran order
        if x.itemsize > 1:
            same("logp_new", x.astype(x.dtype.newbyteorder(">")), name, x)
    x = np.array([[0.0, -0.0, np.nan], [np.inf, -np.inf, 1e-45]], "float32")
    same("logp_new", x, "F32", x)
    wide = rng.standard_normal((2, 6)).astype("float32")
    same("logp_new", wide[:, ::2], "F32", wide[:, ::2].copy())
    same("logp_new", wide[:, ::-2], "F32", wide[:, ::-2].copy())
    b = wide[:, :3].astype(ml_dtypes.bfloat16)
    same("logp_new", b, "BF16", b.view("uint16"))
    same("loss", 0.1, "F64", np.array(0.1))
    same("scores", [1, 2], "I64", np.array([1, 2]))
    same("weights", np.zeros((0, 5), "float32"), "F32", np.zeros((0, 5), "float32"))
    same("grad/layer.0", wide, "F32", wide)


def torch_arrays():
    import torch

    devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    for device in devices:
        for dtype, name, bits in ((torch.float32, "F32", torch.int32), (torch.bfloat16, "BF16", torch.int16), (torch.float16, "F16", torch.int16), (torch.float64, "F64", torch.int64)):
            x = torch.randn(3, 2, device=device).to(dtype)
            x[0, 0] = float("nan")
            want = x.t().contiguous().view(bits).cpu().numpy()
            same("logp_new", x.t(), name, want)  # not contiguous
            same("logp_new", x.t().contiguous().requires_grad_(), name, want)
            same("logp_new", torch.nn.Parameter(x.t()), name, want)
            same("logp_new", (x.t().clone().requires_grad_() * 1), name, want)  # in a graph
            same("loss", x[0, 1], name, x[0, 1].view(bits).cpu().numpy())
            same("weights", torch.zeros(0, 4, dtype=dtype, device=device), name, np.zeros((0, 4), f"int{8 * x.element_size()}"))
        same("response_ids", torch.arange(6, device=device).view(2, 3), "I64", np.arange(6).reshape(2, 3))
        same("dones", torch.ones(2, 3, dtype=torch.bool, device=device), "BOOL", np.ones((2, 3), bool))
    if "cuda" not in devices:
        done.append("torch on a GPU: not run, there is none")
    meta = torch.zeros(2, 3, device="meta")
    fails("tensor", "cannot be read", lambda **k: plumbline.dump(fresh(), step=0, response_mask=MASK, logp_new=meta, **k))
    c = torch.zeros(2, 3, dtype=torch.complex64)
    fails("tensor", "complex64 is no type", lambda **k: plumbline.dump(fresh(), step=0, response_mask=MASK, logp_new=c, **k))
    f8 = torch.zeros(2, 3).to(torch.float8_e4m3fn)
    fails("tensor", "float8_e4m3fn is no type", lambda **k: plumbline.dump(fresh(), step=0, response_mask=MASK, logp_new=f8, **k))
    loss = torch.tensor(2.5, requires_grad=True)
    meta, _ = read(plumbline.dump(fresh(), step=0, response_mask=MASK, scalars={"loss": loss}, strict=True))
    expect(meta["scalars"] == {"loss": 2.5}, "a scalar with a gradient")

    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        meta, _ = read(plumbline.dump(fresh(), step=0, response_mask=MASK, strict=True))
        expect((meta["rank"], meta["world_size"]) == (0, 1), "the rank of torch.distributed")
    finally:
        dist.destroy_process_group()


def jax_arrays():
    import jax
    import jax.numpy as jnp

    for dtype, name in (("float32", "F32"), ("bfloat16", "BF16"), ("float16", "F16"), ("int32", "I32")):
        x = jnp.arange(6, dtype=dtype).reshape(2, 3) / 7 if dtype != "int32" else jnp.arange(6, dtype=dtype).reshape(2, 3)
        want = np.asarray(x.astype(dtype))
        same("logp_new", x.astype(dtype), name, want.view(f"uint{8 * want.itemsize}"))
    meta, _ = read(plumbline.dump(fresh(), step=0, response_mask=jnp.ones((2, 3), bool), strict=True))
    expect((meta["rank"], meta["world_size"]) == (0, 1), "the process of JAX")
    kept = []

    def traced(**k):
        jax.jit(lambda x: kept.append(plumbline.dump(fresh(), step=0, response_mask=MASK, logp_new=x, **k)) or x)(jnp.ones((2, 3)))
        return kept[-1]

    fails("tensor", "cannot be read", traced)


def metadata():
    import argparse
    import dataclasses
    import enum

    class Kind(str, enum.Enum):
        LINEAR = "linear"

    @dataclasses.dataclass
    class Args:
        beta: float = 0.04
        lr_scheduler_type: Kind = Kind.LINEAR
        callback: object = None
        reward_weights: tuple = (1.0, np.float32(0.5))

    args = Args(callback=lambda: 0)
    folder = fresh()
    path = plumbline.dump(folder, step=np.int64(7), rank=1, world_size=2, micro_batch=1, micro_batches=4, options=args, framework="trl",
                          version="1.16.0", algorithm="grpo", profile="trl-grpo@1.16", align="response", metadata={"dlogp_scale": 2.0},
                          scalars={"loss": float("nan"), "kl": np.float32(0.5), "n": 3, "none": None}, response_mask=MASK, logp_ref=None, strict=True)
    expect(os.path.basename(path) == "step_000007_rank1_micro1.safetensors", path)
    meta, tensors = read(path)
    want = {"schema": 1, "step": 7, "rank": 1, "world_size": 2, "micro_batch": 1, "micro_batches": 4, "framework": "trl", "version": "1.16.0",
            "algorithm": "grpo", "profile": "trl-grpo@1.16", "align": "response", "dlogp_scale": 2.0,
            "options": {"beta": 0.04, "lr_scheduler_type": "linear", "reward_weights": [1.0, 0.5]},
            "scalars": {"loss": None, "kl": 0.5, "n": 3.0, "none": None}}
    expect(meta == want, f"metadata {meta}, want {want}")
    expect(set(tensors) == {"response_mask"}, "None is left out")
    expect(os.stat(path).st_mode & 0o777 == 0o666 & ~UMASK, "the mode of the file")
    for options, plain in ((argparse.Namespace(a=1), {"a": 1}), (types.SimpleNamespace(b=[True, None]), {"b": [True, None]}),
                           ({"x": {"y": np.bool_(True)}, "inf": float("inf"), "big": 10**30}, {"x": {"y": True}, "big": 10**30})):
        meta, _ = read(plumbline.dump(fresh(), step=0, response_mask=MASK, options=options, strict=True))
        expect(meta["options"] == plain, f"options {meta['options']}, want {plain}")
    os.environ.update(RANK="3", WORLD_SIZE="8")
    try:
        path = plumbline.dump(fresh(), step=0, response_mask=MASK, strict=True)
        expect(os.path.basename(path) == "step_000000_rank3.safetensors" and read(path)[0]["world_size"] == 8, "RANK and WORLD_SIZE")
    finally:
        del os.environ["RANK"], os.environ["WORLD_SIZE"]


def mistakes():
    d = lambda **tensors: lambda **k: plumbline.dump(fresh(), step=0, **{"response_mask": MASK, **tensors}, **k)
    fails("shape", "logp_new has the shape [2, 4], but response_mask [2, 3]", d(logp_new=np.zeros((2, 4))))
    fails("shape", "want 2 rows", d(scores=np.zeros(3)))
    fails("shape", "want 2 rows", d(advantages=np.zeros(3)))
    fails("shape", "want [B, T]", d(response_mask=np.ones(3)))
    fails("argument", "response_mask is missing", lambda **k: plumbline.dump(fresh(), step=0, logp_new=np.zeros((2, 3)), **k))
    fails("tensor", "logp_new: list cannot be read", d(logp_new=[[1.0], [1.0, 2.0]]))
    fails("tensor", "object is no type", d(logp_new=np.array([[None] * 3] * 2)))
    fails("tensor", "is no name", d(**{"a\nb": np.zeros(3)}))
    for k, v in (("step", -1), ("step", 1.5), ("step", True), ("step", None), ("rank", -1), ("micro_batch", "0"), ("world_size", 0)):
        fails("argument", f"{k}={v!r}: want a whole number", lambda k=k, v=v, **s: plumbline.dump(fresh(), **{"step": 0, k: v}, response_mask=MASK, **s))
    fails("argument", "micro_batch=4, but micro_batches=4", lambda **k: plumbline.dump(fresh(), step=0, micro_batch=4, micro_batches=4, response_mask=MASK, **k))
    fails("argument", "options: int is no mapping", lambda **k: plumbline.dump(fresh(), step=0, options=3, response_mask=MASK, **k))
    fails("argument", "scalars: loss: str is no number", lambda **k: plumbline.dump(fresh(), step=0, scalars={"loss": "low"}, response_mask=MASK, **k))
    fails("argument", "metadata: step is an argument", lambda **k: plumbline.dump(fresh(), step=0, metadata={"step": 1}, response_mask=MASK, **k))
    fails("argument", "pass fewer options", lambda **k: plumbline.dump(fresh(), step=0, options={"x": "y" * (1 << 20)}, response_mask=MASK, **k))
    fails("argument", ".safetensors", lambda **k: plumbline.dump("run.npz", step=0, response_mask=MASK, **k))
    fails("argument", "TypeError", lambda **k: plumbline.dump(None, step=0, response_mask=MASK, **k))
    folder = fresh()
    first = plumbline.dump(folder, step=5, response_mask=MASK, scores=[1.0, 2.0], strict=True)
    before = open(first, "rb").read()
    fails("twice", "is there already", lambda **k: plumbline.dump(folder, step=5, micro_batch=0, response_mask=MASK, **k))
    expect(open(first, "rb").read() == before and os.listdir(os.path.dirname(first)) == ["step_000005.safetensors"], "the first file of a step stays")
    names = [os.path.basename(plumbline.dump(folder, step=s, response_mask=MASK, strict=True)) for s in (5, 5, 6)]
    expect(names == ["step_000005_micro1.safetensors", "step_000005_micro2.safetensors", "step_000006.safetensors"], f"micro-batches are counted: {names}")
    blocked = os.path.join(first, "run")
    fails("write", "step_000000", lambda **k: plumbline.dump(blocked, step=0, response_mask=MASK, **k))

    folder = fresh()  # a disk without room, as far as this process goes
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        fails("write", "File too large", lambda **k: plumbline.dump(folder, step=0, response_mask=MASK, weights=np.zeros(10000), **k))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    left = [name for _, _, names in os.walk(folder) for name in names]
    expect(left == [], f"left behind: {left}")

    folder, made = fresh(), []  # eight threads write one step: one file, one success
    threads = [threading.Thread(target=lambda: made.append(plumbline.dump(folder, step=0, micro_batch=0, response_mask=MASK))) for _ in range(8)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        [t.start() for t in threads], [t.join() for t in threads]
    expect(sum(m is not None for m in made) == 1 and [n for _, _, names in os.walk(folder) for n in names] == ["step_000000.safetensors"], f"a race: {made}")


def judging(dumps):
    entries = json.load(open(os.path.join(dumps, "EXPECT.json")))
    clean = next(k for k in sorted(entries) if entries[k]["expect"] == "clean" and k.startswith("trl-grpo"))
    faulty = next(k for k in sorted(entries) if entries[k]["expect"] != "clean" and k.startswith("trl-grpo") and entries[k].get("faults"))
    r = plumbline.check(os.path.join(dumps, clean), profile=entries[clean]["profile"])
    expect(r.ok and r.exit == 0 and not r.bad and r.results and r.counts["PASS"] > 0, f"{clean}: exit {r.exit}")
    expect(any(isinstance(x.measured, float) and x.ratio <= 1 for x in r.results), "numbers of results")
    plumbline.assert_dump(os.path.join(dumps, clean), profile=entries[clean]["profile"])
    bad = plumbline.check(os.path.join(dumps, faulty), entries[faulty]["profile"])
    expect(bad.exit == 1 and bad.bad and any(e.title for x in bad.bad for e in x.explanations), f"{faulty}: exit {bad.exit}")
    try:
        plumbline.assert_dump(os.path.join(dumps, faulty), profile=entries[faulty]["profile"])
    except AssertionError as e:
        expect("advantage/group" in str(e) and "exit 1" in str(e), "the report is the message")
    else:
        expect(False, f"{faulty}: assert_dump passed")
    for path, flags, code in (("nowhere", {}, 2), (clean, {"profile": "no-such-profile"}, 2), (clean, {"no_such_flag": 1}, 2)):
        try:
            r = plumbline.check(os.path.join(dumps, path), **flags)
            expect(r.exit == code and r.error, f"{path} {flags}: exit {r.exit}")
        except plumbline.VerifyError as e:
            expect(e.exit == code and str(e), f"{path} {flags}: {e}")
    a = plumbline._check.arguments({"set": {"adv.ddof": 0, "x": True}, "select": ("a", "b"), "first_step": True, "deep": False, "config": None})
    expect(a == ["--set=adv.ddof=0", "--set=x=true", "--select=a", "--select=b", "--first-step"], a)

    # Our own files, read by our own reader: a run of two ranks and bf16.
    folder = fresh()
    for rank in range(2):
        plumbline.dump(folder, step=0, rank=rank, world_size=2, framework="trl", algorithm="grpo", options={"num_generations": 2},
                       response_mask=np.ones((4, 3), bool), scores=np.arange(4.0) * (1 + rank), group_id=np.array([0, 0, 1, 1]) + 2 * rank,
                       logp_new=(np.ones((4, 3)) * -0.5).astype(ml_dtypes.bfloat16), logp_old=np.full((4, 3), -0.5, "float32"), strict=True)
    r = plumbline.check(folder)
    expect(r.exit not in (2, 3, 4) and len(r.inputs) == 2, f"our own files: exit {r.exit} {r.error}")

    script = os.path.join(sysconfig.get_path("scripts"), "verify")
    out = subprocess.run([script, "--version", "--json"], capture_output=True, text=True, check=True)
    expect(json.loads(out.stdout)["name"] == "verify", "the console script")
    out = subprocess.run([sys.executable, "-m", "plumbline", "dump", "nowhere"], capture_output=True, text=True)
    expect(out.returncode == 2 and "nowhere" in out.stderr, "python -m plumbline")


def sharing():
    """A session without every= keeps to its share of the time, on the wall and of the processor, whatever a dump costs and what is judged between."""
    from plumbline import _session

    def spends(dump, judge, period=1, counted=True):
        clock = types.SimpleNamespace(wall=0.0, busy=0.0)

        def takes(seconds):
            clock.wall, clock.busy = clock.wall + seconds, clock.busy + seconds

        _session.time, _session._busy = types.SimpleNamespace(perf_counter=lambda: clock.wall), lambda: clock.busy
        session, own, dumped = _session.Session(fresh()), 0.0, 0
        session.period = period
        for step in range(1, 3001):
            clock.wall, clock.busy = clock.wall + 1, clock.busy + 0.5  # of the step itself
            if step in session:
                takes(dump)
                session.write(lambda *_: None, __file__, {}, {})
                with session.spending() if counted else contextlib.nullcontext():
                    takes(judge)
                own, dumped = own + dump + judge, dumped + 1
        first = max(_session.FIRST, period)
        return dumped, max(own - first * (dump + judge), 0) / (clock.busy - own)

    kept = _session.time, _session._busy
    try:
        for dump, judge, period in ((0.001, 0, 1), (0.02, 0, 1), (0.4, 0, 1), (5, 0, 1), (0.05, 2, 1), (0.1, 0, 4), (5, 0, 4), (900, 0, 1)):
            dumped, share = spends(dump, judge, period)
            expect(share <= _session.SHARE, f"dumps of {dump} s, judged in {judge} s, take {100 * share:.1f} %")
            might = min(3000, _session.SHARE * 1500 / (dump + judge))
            expect(dumped >= 0.9 * might - period, f"dumps of {dump} s, judged in {judge} s: {dumped} of {might:.0f} steps that there was time for")
        expect(spends(0.05, 2, counted=False)[1] > _session.SHARE, "judging that nobody counts is over the share: this test sees it")
    finally:
        _session.time, _session._busy = kept
    done.append("the share of a session")


if __name__ == "__main__":
    UMASK = os.umask(0o022)
    os.umask(UMASK)
    ROOT = tempfile.mkdtemp()
    try:
        numpy_arrays()
        metadata()
        mistakes()
        for name, arrays in (("torch", torch_arrays), ("jax", jax_arrays)):
            try:
                __import__(name)
            except ImportError:
                done.append(f"{name}: not run, not installed")
                continue
            arrays()
        judging(sys.argv[1])
        sharing()
    finally:
        shutil.rmtree(ROOT)
    for what in sorted(set(done)):
        print(f"{what}\t× {done.count(what)}" if done.count(what) > 1 else what)
    print("ok")

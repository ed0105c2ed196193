"""The products of accel against PyTorch's on the same machine in the same run: int8, bfloat16 against int8 weights, float32, float64.

    python benchmarks/peers/gemm.py [--reps 6] [--seconds 0.2] [--variant avx2]

Both sides take turns, ABAB, and the best of each is compared, in wall time on all cores and in CPU time of all threads, which other
work on the machine disturbs less. A ratio above 1 means that accel is faster. Needs torch 2.15.0 (CPU) and Go.
"""

import argparse, os, re, subprocess, sys, tempfile, time

import torch

SHAPES = ["512x896x896", "1024x576x576", "512x4096x4096"]


def peer(name, m, n, k):
    """The same work in PyTorch, as a function of no arguments."""
    if name == "I8Gemm":
        a = torch.randint(-127, 128, (m, k), dtype=torch.int8)
        b = torch.randint(-127, 128, (n, k), dtype=torch.int8).t()
        return "torch._int_mm", lambda: torch._int_mm(a, b)
    kind = {"W8A16": torch.bfloat16, "W8A16DX": torch.bfloat16, "F32Gemm": torch.float32, "F64Gemm": torch.float64}[name]
    if name == "W8A16DX":
        a, b = torch.randn(m, n).to(kind), torch.randn(n, k).to(kind)
        return "torch.matmul bfloat16", lambda: a @ b
    a, b = torch.randn(m, k).to(kind), torch.randn(n, k).to(kind).t()
    return "torch.matmul " + str(kind).removeprefix("torch."), lambda: a @ b


def timed(f, seconds):
    """Wall and CPU seconds of one call."""
    calls, wall, cpu = 0, time.perf_counter(), time.process_time()
    while calls == 0 or time.perf_counter() - wall < seconds:
        f()
        calls += 1
    return (time.perf_counter() - wall) / calls, (time.process_time() - cpu) / calls


def ours(binary, name, shape, seconds, variant):
    bench = f"^Benchmark{name}$/^{shape}$/^{variant}$"
    out = subprocess.run([binary, "-test.run", "^$", "-test.bench", bench, "-test.benchtime", f"{seconds}s"], check=True, capture_output=True, text=True).stdout
    line = next(l for l in out.splitlines() if l.startswith("Benchmark" + name) and "ns/op" in l)
    value = lambda unit: float(re.search(r"([\d.e+]+) " + re.escape(unit), line).group(1))
    return value("ns/op") / 1e9, value("cpu-ns/op") / 1e9, value("%probe") if "%probe" in line else float("nan")


def best_variant(binary, name):
    """The variant of an op that this machine would choose: the last that runs."""
    out = subprocess.run([binary, "-test.run", "^$", "-test.bench", f"^Benchmark{name}$/^48x64x256$", "-test.benchtime", "1x"], check=True, capture_output=True, text=True).stdout
    return re.findall(r"^Benchmark\S+/([a-z0-9]+?)(?:-\d+)?\s.*ns/op", out, re.M)[-1]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--reps", type=int, default=6)
    p.add_argument("--seconds", type=float, default=0.2)
    p.add_argument("--variant", help="of accel; else the best that this machine has")
    p.add_argument("--run", default="I8Gemm,W8A16,W8A16DX,F32Gemm,F64Gemm")
    p.add_argument("--shapes", default=",".join(SHAPES))
    o = p.parse_args()
    model = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "?")
    print(f"# {model}, {os.cpu_count()} processors, torch {torch.__version__} with {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}")
    print(f"# best of {o.reps}, interleaved; ratio = time of torch / time of accel")
    print("| product | m × n × k | variant | of probe | peer | accel ms | torch ms | ratio | ratio of CPU time |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as d:
        binary = os.path.join(d, "bench")
        subprocess.run(["go", "test", "-c", "-o", binary, "./benchmarks"], check=True)
        for name in o.run.split(","):
            variant = o.variant or best_variant(binary, name)
            for shape in o.shapes.split(","):
                m, n, k = map(int, shape.split("x"))
                label, f = peer(name, m, n, k)
                f()
                a, b = [], []
                for _ in range(o.reps):
                    a.append(ours(binary, name, shape, o.seconds, variant))
                    b.append(timed(f, o.seconds))
                best = lambda x, i: min(v[i] for v in x)
                print(f"| {name} | {m} × {n} × {k} | {variant} | {max(v[2] for v in a):.0f} % | {label} | {1e3 * best(a, 0):.2f} | {1e3 * best(b, 0):.2f}"
                      f" | {best(b, 0) / best(a, 0):.2f} | {best(b, 1) / best(a, 1):.2f} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())

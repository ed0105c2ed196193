"""A training step and the scoring of accel against PyTorch with PEFT on the same machine in the same run: SmolLM2-135M's geometry, LoRA of rank 16 on
q_proj and v_proj, 4 sequences of 256 tokens.

    python benchmarks/peers/model.py [--reps 6]

Both sides take turns, ABAB, and the best of each is compared, in wall time on all cores and in CPU time of all threads, which other work on
the machine disturbs less. Peak memory is that of a process that does the job and nothing else. A ratio above 1 means that accel is faster, or
that it takes less memory. The weights are random: speed does not depend on them. A step is forward, backward, clipping and AdamW; scoring is forward, log-probability and, on
the side of accel, the entropy of every token. Needs torch 2.15.0 (CPU), transformers 5.23.0, peft 0.21.2 and Go.
"""

import argparse, os, re, subprocess, sys, tempfile, time

ROWS, TIME = 4, 256


def peer(job):
    """The same work in PyTorch, as a function of no arguments."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, head_dim=64,
                         max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 100000.0})
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    ids = (torch.arange(ROWS * TIME) * 7919 % 49152).view(ROWS, TIME)
    trained = [p for p in model.parameters() if p.requires_grad]
    if job == "train":
        model.train()
        optimizer = torch.optim.AdamW(trained, lr=1e-4)

        def step():
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.item()

        return step
    model.eval()

    @torch.no_grad()
    def score():
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        return torch.log_softmax(logits.float(), -1).gather(-1, ids[:, 1:, None]).sum().item()

    return score


def high_water():
    return next(int(l.split()[1]) * 1.024e-3 for l in open("/proc/self/status") if l.startswith("VmHWM"))


def timed(f):
    wall, cpu = time.perf_counter(), time.process_time()
    f()
    return time.perf_counter() - wall, time.process_time() - cpu


def ours(binary, job, mode):
    """Wall and CPU seconds of one call after one that is not timed, and the peak memory of the process."""
    out = subprocess.run([binary, "-test.run", "^$", "-test.bench", f"^BenchmarkStep$/^{job}$/^{mode}$", "-test.benchtime", "1x"], check=True, capture_output=True, text=True).stdout
    line = next(l for l in out.splitlines() if l.startswith("BenchmarkStep/"))
    value = lambda unit: float(re.search(r"([\d.e+]+) " + re.escape(unit), line).group(1))
    return value("ns/op") / 1e9, value("cpu-ns/op") / 1e9, value("peakMB")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--reps", type=int, default=6)
    p.add_argument("--modes", default="w8a16,w8a8")
    p.add_argument("--peak", choices=["train", "score"], help="print the peak memory of PyTorch's job and nothing else")
    o = p.parse_args()
    if o.peak:
        f = peer(o.peak)
        f(), f()
        print(high_water())
        return
    import peft, torch, transformers

    cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "?")
    print(f"# {cpu}, {os.cpu_count()} processors, torch {torch.__version__} with {torch.get_num_threads()} threads, transformers {transformers.__version__}, peft {peft.__version__}, load {os.getloadavg()[0]:.1f}")
    print(f"# SmolLM2-135M's geometry, LoRA r=16 on q_proj and v_proj, {ROWS} × {TIME} tokens, best of {o.reps}, interleaved; PyTorch in bfloat16")
    print("| job | mode of accel | accel tok/s | torch tok/s | ratio | ratio of CPU time | accel MB | torch MB | share of memory |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as d:
        binary = os.path.join(d, "bench")
        subprocess.run(["go", "test", "-c", "-o", binary, "./benchmarks"], check=True)
        for job in ["train", "score"]:
            peak = float(subprocess.run([sys.executable, __file__, "--peak", job], check=True, capture_output=True, text=True).stdout)
            f = peer(job)
            f()
            modes = o.modes.split(",")
            a, b = {m: [] for m in modes}, []
            for _ in range(o.reps):
                for m in modes:
                    a[m].append(ours(binary, job, m))
                b.append(timed(f))
            best = lambda x, i: min(v[i] for v in x)
            for m in modes:
                memory = best(a[m], 2)
                print(f"| {job} | {m} | {ROWS * TIME / best(a[m], 0):.0f} | {ROWS * TIME / best(b, 0):.0f} | {best(b, 0) / best(a[m], 0):.2f} | {best(b, 1) / best(a[m], 1):.2f}"
                      f" | {memory:.0f} | {peak:.0f} | {memory / peak:.2f} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())

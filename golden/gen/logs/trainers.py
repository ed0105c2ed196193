"""Logs of this project's trainers with a fault in them, and of healthy runs with drawn settings.

    python golden/gen/logs/trainers.py verify/runlog/testdata/rows           # every row of the fault catalogue that a trainer can show
    python golden/gen/logs/trainers.py OUT --healthy N                      # N healthy runs

A fault is a setting, or an edit of the source that go build -overlay puts in. A row is a folder with what train printed (log.txt) and
its metrics.jsonl; rows.txt has a line for each: folder, the symptom that must come first, how it was made. Needs Python 3.11 and Go.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
TRAIN = "internal/train/"
PPO = ["ppo", "--config", "config_debug", "training.output_dir=out", "training.save_interval=1000", "eval.samples=0", "dataset.held_out=0",
       "ppo.rollout_samples=8", "ppo.mini_batch_size=4", "ppo.gradient_accumulation_steps=2", "ppo.batch_size=8", "dataset.max_gen_length=6",
       "ppo.learning_rate=1e-5", "ppo.min_lr=0", "training.total_ppo_steps=10"]
GRPO = ["grpo", "out_dir=out", "max_iters=6", "block_size=16", "batch_size=1", "group_size=4", "gradient_accumulation_steps=2", "eval_samples=0", "save_interval=1000"]
SHIELDED = ["shielded", "--config", "shielded_toy", "output_dir=out", "steps=12", "ppo_batch=8", "micro_batch_size=4", "sim_batch=8", "max_new_tokens=12"]
# other sizes and seeds than those above
PPO3 = PPO + ["ppo.rollout_samples=12", "ppo.batch_size=12", "dataset.max_gen_length=8", "ppo.learning_rate=3e-5", "ppo.epochs=2", "training.total_ppo_steps=14", "training.seed=90210"]
GRPO2 = GRPO + ["max_iters=7", "block_size=32", "batch_size=2", "mask_ratio=0.25", "seed=90210"]
ARC2 = ["arc", "output_dir=out", "tasks=8", "log_every=1", "save_every=0", "cache_every=1", "seed=90210"]
ARC = ["arc", "output_dir=out", "tasks=6", "log_every=1", "save_every=0", "cache_every=1"]

UPDATE = "reference/rl/update.go"
g, p, s, a, pol = TRAIN + "grpo.go", TRAIN + "ppo.go", TRAIN + "shielded.go", TRAIN + "arc.go", TRAIN + "policy.go"
FINITE = (pol, "if (on == nil || on[i]) && (math.IsNaN(v)", "if step < 0 && (math.IsNaN(v)")
KLCHECK = (g, 'c.Frozen == "" && !(math.Abs(kl) <= 1e-6)', 'c.Frozen == "" && math.IsNaN(kl)')
SCORES = "	r.batch, r.mask = leftPad(prompts, pad).withResponses(responses, pad)\n"


def sleep(seconds):
    return f"time.Sleep({int(seconds * 1000)} * time.Millisecond)"


def slow(file, at, seconds):
    """A phase that takes longer, before a statement."""
    return [(file, '	"slices"\n\n', '	"slices"\n	"time"\n\n'), (file, at, sleep(seconds) + "\n" + at)]


# folder, symptom, settings, edits (file, old, new)
ROWS = [
    ("A2-projection", "A2", SHIELDED, [(TRAIN + "shielded_shield.go", "	out.Spent = time.Since(at)", "	time.Sleep(60 * time.Millisecond)\n	out.Spent = time.Since(at)")]),
    ("A3-lr", "A3", SHIELDED + ["lr=0.5"], []),
    ("A3-beta", "A3", SHIELDED + ["kl_beta=0.001"], []),
    ("A7-sign", "A7", SHIELDED + ["steps=40", "ppo_batch=16"],
     [(s, "	a.adv = rl.Broadcast(nil, white,", "	for i := range white {\n		white[i] = -white[i]\n	}\n	a.adv = rl.Broadcast(nil, white,")]),
    ("A6-devices", "A6", ["shielded", "--config", "shielded_toy", "output_dir=out", "steps=2", "int8=true", "device_map=auto", "gpus=2"], []),
    ("A10-detached", "A10", SHIELDED + ["grad_flow_every=1"], [(s, "return Slopes{LogProbs: res.DLogp}", "return Slopes{LogProbs: make([]float64, len(res.DLogp))}")]),
    ("H1-zeros", "H1", SHIELDED, [(s, "a.gen, a.old, a.ref = padded(gen, cols), now.LogProbs, ref", "a.gen, a.old, a.ref = padded(gen, cols), make([]float64, len(now.LogProbs)), ref"),
                                  (s, "!(math.Abs(ratioLow-1) < 1e-3", "math.IsNaN(pg) && !(math.Abs(ratioLow-1) < 1e-3")]),
    ("H1-reference", "H1", SHIELDED, [(s, "now.LogProbs, ref\n	for", "now.LogProbs, make([]float64, len(ref))\n	for")]),

    ("B1-judge", "B1", GRPO, [(g, "1 - min(max(y, 0), 1)", "1 - min(max(y, 1), 1)")]),
    ("B1-stream", "B1", GRPO, [(g, "Uniform(stream, first+i, t)", "Uniform(stream, first+i/k, t)")]),
    ("B1-cold", "B1", GRPO + ["temperature=0.01"], []),
    ("B4-masks", "B4", GRPO, [(g, "		if !on {\n			lp[i] = 0", "		if on {\n			lp[i] = 0"), KLCHECK]),
    ("B2-ratio", "B2", GRPO + ["mask_ratio=0.5"], [(g, "m.masked = append(m.masked, id == mask)", "m.masked = append(m.masked, false)"), KLCHECK,
                                                 (g, "m.perRow += 1 / float64(c.BatchSize*c.GroupSize)", "m.perRow += 0"), (g, "m.perRow == 0 || m.identical", "m.perRow < 0 || m.identical"), (g, "		if m.perRow == 0 {", "		if m.perRow < 0 {")]),
    ("B3-divided", "B3", GRPO, [(TRAIN + "grpo_log.go", "loss += m.result.Loss / n", "loss += m.result.Loss / n * 1e-9"), (TRAIN + "grpo_log.go", "policy += m.result.Policy / n\n		kl += m.result.KL / n", "policy += m.result.Policy / n * 1e-9\n		kl += m.result.KL / n * 1e-9")]),
    ("B5-slow", "B5", GRPO + ["max_iters=2"], slow(g, "	m.seconds[2] = env.Clock() - start\n", 0.9) + slow(g, "	mean, std := meanStd(m.rewards)\n	m.seconds[3]", 0.4)[1:] + slow(g, "		m.seconds[4] = env.Clock() - start", 1.8)[1:]),
    ("B7-sampling", "B7", GRPO + ["max_iters=2"], slow(g, "	m.seconds[2] = env.Clock() - start\n", 1.2)),
    ("B8-scoring", "B8", GRPO + ["max_iters=2"], slow(g, "	mean, std := meanStd(m.rewards)\n	m.seconds[3]", .8)),
    ("B9-loss", "B9", GRPO + ["max_iters=2", "gradient_accumulation_steps=1"], slow(g, "		m.seconds[4] = env.Clock() - start", 2.3)),
    ("B10-kl", "B10", GRPO + ["learning_rate=1e-2", "warmup_iters=0", "kl_beta=5", "max_iters=10", "mask_ratio=0.5", "block_size=32"], []),
    ("B6-cost", "B6", GRPO2 + ["gradient_accumulation_steps=4", "max_iters=2"], []),
    ("H7c-option", "H7c", GRPO2 + ["kl_estimator=k1", "learning_rate=2e-3", "warmup_iters=0", "max_iters=10"], []),
    ("B11-time", "B11", ["grpo", "--config", "grpo_quick", "out_dir=out", "time_limit_s=0.05"], []),
    ("B11-loss", "B1", ["grpo", "--config", "grpo_quick", "out_dir=out"], [(g, "1 - min(max(y, 0), 1)", "1 - min(max(y, 1), 1)")]),
    ("H5-position", "H5", GRPO, [(g, "		if !on {\n			lp[i] = 0", "		if !on || i%c.BlockSize != 0 {\n			lp[i] = 0"), KLCHECK]),
    ("H7a-dropout", "H7a", GRPO, [("internal/bind/masked.go", "	n := m.frozen.On(&ad.Tape{}, nil)\n	return logitsOf(x, n.Logits(n.Forward(input(x)).Hidden))",
                                 "	n := m.frozen.On(&ad.Tape{}, nil)\n	return logitsOf(x, ad.Scale(n.Logits(n.Forward(input(x)).Hidden), 0.9))"), KLCHECK]),
    ("H7c-k1", "H7c", GRPO + ["kl_estimator=k1", "learning_rate=1e-3", "warmup_iters=0", "mask_ratio=0.5", "block_size=32"], []),
    ("H7d-fetch", "H7d", GRPO + ["max_iters=3"], slow(g, "	schedule := optim.Schedule{Decay", .5)),
    ("LOSS-SUM-grpo", "LOSS-SUM", GRPO + ["learning_rate=1e-2", "warmup_iters=0", "kl_beta=0.5"],
     [(g, "m.result.Policy, m.result.KL, m.result.Loss)\n", "m.result.Policy, m.result.KL, m.result.Policy)\n"), (TRAIN + "grpo_log.go", "loss += m.result.Loss / n", "loss += m.result.Policy / n")]),

    ("C3-nan", "C3", PPO, [FINITE, (p, "	r.advantages, r.returns, err = rl.Compute", "	if step > 3 {\n		r.scores[0] = math.NaN()\n	}\n	r.advantages, r.returns, err = rl.Compute")]),
    ("C7-low", "C7", PPO + ["ppo.learning_rate=1e-3", "ppo.kl_coeff=0", "ppo.epochs=2", "ppo.vf_coeff=0.5", "training.total_ppo_steps=40", "ppo.warmup_steps=80", "ppo.clip_ratio=0.9"], []),
    ("C7-high", "C7", PPO + ["ppo.learning_rate=1e-9", "ppo.kl_coeff=100", "training.total_ppo_steps=60", "ppo.epochs=1"], []),
    ("C8-entropy", "C8", PPO + ["ppo.entropy_coeff=1", "ppo.learning_rate=1e-3", "ppo.kl_coeff=0", "training.total_ppo_steps=60", "ppo.epochs=1"], [(UPDATE, "u.DEntropy[i] = float64(o.EntropyCoeff*u.DEntropy[i])", "u.DEntropy[i] = -float64(o.EntropyCoeff*u.DEntropy[i])")]),
    ("RATIO-FIRST-old", "RATIO-FIRST", PPO3 + ["ppo.gradient_accumulation_steps=3"], [(p, "	r.old, r.values, r.ref = now.LogProbs, now.Values, ref\n", "	r.old, r.values, r.ref = now.LogProbs, now.Values, ref\n	for i := range r.old {\n		r.old[i] *= 0.9\n	}\n")]),
    ("H13d-leftover", "H13d", PPO3 + ["ppo.gradient_accumulation_steps=2"],
     [(p, "	result := rl.UpdateEpoch{Steps:", "	micros = micros[:len(micros)/c.Accumulation*c.Accumulation]\n	result := rl.UpdateEpoch{Steps:"),
      (p, "	perEpoch := len(rl.PlanUpdates((c.RolloutSamples+c.MiniBatch-1)/c.MiniBatch, c.Accumulation, nil))", "	perEpoch := (c.RolloutSamples + c.MiniBatch - 1) / c.MiniBatch / c.Accumulation")]),
    ("C18-epochs", "C18", PPO + ["ppo.epochs=1"], []),
    ("C9-skip", "C9", PPO, [(p, "		for epoch := range c.Epochs {\n", "		if reward == 0 {\n			fmt.Fprintln(env.Out, \"All rewards are zero, skipping the PPO update\")\n			return nil\n		}\n		for epoch := range c.Epochs {\n")]),
    ("C10-sign", "C10", PPO + ["training.total_ppo_steps=220", "ppo.epochs=1", "ppo.rollout_samples=4", "ppo.learning_rate=1e-4", "dataset.prompt_format=Question: {question}\\nAnswer:"],
     [(p, "	return r, err\n}\n\n// update makes", "	for i := range r.advantages {\n		r.advantages[i] = -r.advantages[i]\n	}\n	return r, err\n}\n\n// update makes")]),
    ("C11-value", "C11", PPO + ["ppo.vf_coeff=0", "training.total_ppo_steps=60", "ppo.epochs=4", "ppo.learning_rate=1e-4"], []),
    ("C12-lr", "C12", PPO + ["ppo.learning_rate=3e-3", "ppo.clip_ratio=5"], []),
    ("C13-range", "C13", PPO + ["ppo.clip_ratio=0.0005", "ppo.learning_rate=1e-4"], []),
    ("C14-value", "C14", PPO + ["ppo.vf_coeff=3000"], []),
    ("C15-unstable", "C15", PPO + ["ppo.vf_coeff=1000", "ppo.learning_rate=1e-4", "training.total_ppo_steps=20"], []),
    ("H13c-sampler", "RATIO-FIRST", PPO + ["generation.temperature=0.5", "generation.logprobs=processed", "training.total_ppo_steps=8", "ppo.gradient_accumulation_steps=2"],
     [(p, "	r.old, r.values, r.ref = now.LogProbs, now.Values, ref\n", "	r.old, r.values, r.ref = slices.Clone(r.gen), now.Values, ref\n")]),
    ("C16-clip", "C16", PPO + ["ppo.max_grad_norm=0"], []),
    ("C17-greedy", "C17", PPO + ["generation.do_sample=false"], []),
    ("LOSS-SUM-ppo", "LOSS-SUM", PPO, [(UPDATE, "policy.Loss + float64(o.VFCoeff*value.Loss) + float64(o.EntropyCoeff*entropy),", "policy.Loss/2 + float64(o.VFCoeff*value.Loss) + float64(o.EntropyCoeff*entropy),")]),
    ("ENTROPY-RANGE-sum", "ENTROPY-RANGE", PPO, [(UPDATE, '{"policy/entropy", -entropy}', '{"policy/entropy", entropy}')]),

    ("D6-encoder", "D6", ARC2 + ["epochs=1"], [(a, "	b.encoderMS = milliseconds(at)", "	time.Sleep(150 * time.Millisecond)\n	b.encoderMS = milliseconds(at)")]),
    ("D8-norm", "D8", ARC2 + ["epochs=2", "max_grad_norm=0"], [(a, "	b.qwen = gradNorm(params, encoderPrefix)", "	b.qwen = 1e5 * gradNorm(params, encoderPrefix)")]),
    ("D2-no-grad", "D2", ARC + ["epochs=20"], [(a, "b.fresh = true\n	prompt := net.PromptOf(r.agent.Encode(s.sentence()))", "b.fresh = true\n	made := net.PromptOf(r.agent.Encode(s.sentence()))\n	prompt := tape.Const(made.Data(), len(made.Data()))")]),
    ("D17-hook", "D17", ARC + ["epochs=2", "grad_check=true"], [(a, "b.fresh = true\n	prompt := net.PromptOf(r.agent.Encode(s.sentence()))", "b.fresh = true\n	made := net.PromptOf(r.agent.Encode(s.sentence()))\n	prompt := tape.Const(made.Data(), len(made.Data()))")]),
    ("D20-first", "D20", ["arc", "output_dir=out", "tasks=6", "log_every=10", "save_every=0", "cache_every=1", "epochs=1", "max_batches=20"],
     [(a, "b.fresh = true\n	prompt := net.PromptOf(r.agent.Encode(s.sentence()))", "b.fresh = true\n	made := net.PromptOf(r.agent.Encode(s.sentence()))\n	prompt := tape.Const(made.Data(), len(made.Data()))")]),
    ("D4-weight", "D4", ARC + ["epochs=3"], [(a, "b.factor = 0.5 + 0.5*b.mask", "b.factor = b.mask")]),
    ("D5-scale", "D5", ARC + ["epochs=2", "reward_scale=0.001"], []),
    ("D7-curriculum", "D7", ARC + ["epochs=1", 'curriculum=1.0'], []),
    ("D9-lr", "D9", ARC + ["epochs=8", "agent_lr=0", "qwen_lr=0", "policy_lr=0"], []),
    ("D10-nan", "D10", ARC + ["epochs=2"], [FINITE, (a, "b.loss = scale*terms.Total - 0.3*b.reward", "b.loss = scale*terms.Total - 0.3*b.reward\n	if step > 9 {\n		b.loss = math.NaN()\n	}")]),
    ("D11-same", "D11", ARC + ["epochs=5"], [(a, "b.reward = r.RewardScale * (b.after - b.before)", "b.reward = r.RewardScale * (b.after - b.after)")]),
    ("D12-inverted", "D12", ARC + ["epochs=8"], [(a, "b.mask = wrong(predicted, s.output)", "b.mask = 1 - wrong(predicted, s.output)")]),
    ("D13-frozen", "D13", ARC + ["epochs=4", "agent_lr=0", "qwen_lr=0", "policy_lr=0"], []),
    ("D19-lr", "D19", ARC + ["epochs=2", "agent_lr=5", "qwen_lr=0.5"], []),
]
ONLY = {"D8-norm": "log.txt", "D20-first": "log.txt", "D6-encoder": "metrics.jsonl", "D10-nan": "log.txt", "D4-weight": "metrics.jsonl"}


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def build(to, edits):
    with tempfile.TemporaryDirectory() as tmp:
        texts = {}
        for path, old, new in edits:
            text = texts.get(path) or read(path)
            if old not in text:
                raise RuntimeError(f"{path}: not found: {old!r}")
            texts[path] = text.replace(old, new)
        replace = {}
        for i, (path, text) in enumerate(texts.items()):
            name = os.path.join(tmp, f"{i}.go")
            with open(name, "w", encoding="utf-8") as f:
                f.write(text)
            replace[os.path.abspath(os.path.join(ROOT, path))] = name
        overlay = os.path.join(tmp, "overlay.json")
        with open(overlay, "w", encoding="utf-8") as f:
            json.dump({"Replace": replace}, f)
        subprocess.run(["go", "build", "-overlay", overlay, "-o", to, "./cmd/train"], cwd=ROOT, check=True)


def run(train, args, out):
    with tempfile.TemporaryDirectory() as tmp:
        done = subprocess.run([train, *args], cwd=tmp, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        shutil.rmtree(out, ignore_errors=True)
        os.makedirs(out)
        errors = [l for l in done.stderr.splitlines() if not l.startswith("train: WARNING")]  # these are the live findings themselves
        with open(os.path.join(out, "log.txt"), "w", encoding="utf-8") as f:
            f.write(done.stdout + "".join(l + "\n" for l in errors))
        metrics = os.path.join(tmp, "out", "metrics.jsonl")
        if os.path.exists(metrics):
            shutil.copy(metrics, out)
        return done.returncode


def table(folder):
    with open(os.path.join(folder, "rows.txt"), "w", encoding="utf-8") as f:
        for name, symptom, args, edits in ROWS:
            if os.path.isdir(os.path.join(folder, name)):
                edited = "; edited: " + ", ".join(sorted({e[0] for e in edits})) if edits else ""
                f.write(f"{name}\t{symptom}\ttrain {' '.join(args)}{edited}\n")


def draw(seed):
    """A healthy configuration: the trainers' own defaults at drawn sizes, seeds and options, learning rates near the defaults."""
    r = random.Random(seed)
    kind = r.choice(["ppo", "ppo", "grpo", "grpo", "shielded", "shielded", "arc", "arc", "causal", "causal", "sft"])
    n = r.choice([3, 8, 12])
    one = lambda *of: r.choice(of)
    if kind == "ppo":
        return ["ppo", "--config", "config_debug", "training.output_dir=out", "training.save_interval=1000", "eval.samples=0", "dataset.held_out=0", f"dataset.max_gen_length={one(6, 10)}",
                f"ppo.rollout_samples={one(16, 32)}", f"ppo.mini_batch_size={one(8, 16)}", "ppo.batch_size=16", f"ppo.gradient_accumulation_steps={one(1, 2)}", f"ppo.learning_rate={one(3e-5, 1e-4, 3e-4)}",
                f"ppo.min_lr={one(0, 1e-6)}", f"ppo.epochs={one(1, 2, 4)}", f"ppo.vf_coeff={one(.1, .5)}", f"ppo.kl_coeff={one(.02, .05)}", f"ppo.gamma={one(.99, 1)}", f"ppo.entropy_coeff={one(0, .01)}",
                f"generation.temperature={one(1, .9)}", f"training.total_ppo_steps={n}", f"training.seed={seed}"]
    if kind == "grpo":
        return ["grpo", "out_dir=out", f"max_iters={n}", f"block_size={one(16, 32, 64)}", f"group_size={one(4, 8)}", f"batch_size={one(1, 2)}", f"gradient_accumulation_steps={one(1, 2, 4)}", "eval_samples=0",
                f"mask_ratio={one(.15, .25, .5)}", f"kl_beta={one(.01, .05, .1)}", f"temperature={one(1, .9)}", f"seed={seed}", f"learning_rate={one(1.5e-4, 3e-4, 1e-3)}"]
    if kind == "shielded":
        return SHIELDED + [f"steps={n}", f"seed={seed}", f"ppo_batch={one(16, 32)}", f"lr={one(1e-3, 3e-3)}", f"kl_beta={one(.05, .1)}", f"max_new_tokens={one(12, 32)}", f"lora.r={one(2, 4, 8)}", f"grad_flow_every={one(1, 5, 10)}"]
    if kind == "causal":
        return ["grpo", "--config", "grpo_causal", "output_dir=out", f"max_steps={n}", f"per_device_train_batch_size={one(8, 16)}", f"gradient_accumulation_steps={one(1, 2)}", f"num_generations={one(4, 8)}",
                f"loss_type={one('dapo', 'grpo', 'dr_grpo', 'bnpo')}", "dataset.held_out=0", "eval_samples=0", f"seed={seed}", f"beta={one(0, .04)}", f"learning_rate={one(3e-4, 1e-3)}"]
    if kind == "sft":
        return ["sft", "--config", one("sft", "sft_masked"), "training.output_dir=out", f"training.seed={seed}", f"sft.steps={n}", "training.log_interval=1", "sft.eval_samples=0"]
    return ["arc", "output_dir=out", f"epochs={one(1, 2, 4)}", f"tasks={one(6, 10)}", f"log_every={one(1, 10)}", f"cache_every={one(1, 10)}", f"encoder.train={one('full', 'full', 'lora', 'frozen')}", "save_every=0", f"seed={seed}"]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--healthy", type=int, default=0)
    ap.add_argument("--first", type=int, default=0)
    ap.add_argument("--only", default="")
    o = ap.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        plain = os.path.join(tmp, "train")
        build(plain, [])
        if o.healthy:
            for seed in range(o.first, o.first + o.healthy):
                args = draw(seed)
                code = run(plain, args, os.path.join(o.out, f"{seed:03d}-{args[0]}"))
                if code:
                    print(seed, args, "exit", code, flush=True)
            return
        for name, symptom, args, edits in ROWS:
            if o.only and name not in o.only.split(","):
                continue
            train = plain
            if edits:
                train = os.path.join(tmp, "faulty")
                try:
                    build(train, edits)
                except (RuntimeError, subprocess.CalledProcessError) as e:
                    print(name, "not built:", e, flush=True)
                    continue
            out = os.path.join(o.out, name)
            code = run(train, args, out)
            metrics = os.path.join(out, "metrics.jsonl")
            if name in ONLY:
                for f in os.listdir(out):
                    if f != ONLY[name]:
                        os.remove(os.path.join(out, f))
            elif os.path.exists(metrics) and os.path.getsize(metrics) > 60_000:
                os.remove(metrics)
            print(name, symptom, "exit", code, flush=True)
        table(o.out)


if __name__ == "__main__":
    main()

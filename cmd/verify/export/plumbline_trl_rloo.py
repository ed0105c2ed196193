"""Dumps what the losses of TRL 1.16.0's RLOOTrainer are made of; then: verify dump dumps --profile trl-rloo@1.16
    from plumbline_trl_rloo import install; install(RLOOTrainer)    # before train(); steps 1 to 20 go into dumps/run-…, a new folder for each run
What cannot be dumped is a warning and training goes on; strict=True raises."""
import json, math, os, sys, time, warnings, safetensors.torch, torch, trl
NAMES = dict(response_ids="completion_ids", response_mask="completion_mask", logp_new="per_token_logps", logp_old="old_per_token_logps",
             logp_ref="ref_per_token_logps", entropy="entropies", **{k: k for k in ("input_ids", "attention_mask", "advantages", "scores", "rewards_per_func", "group_id", "loss")})
def run_id(folder, step, seen={}):  # of all ranks the name that the first to ask has found; where the steps begin anew, so does a run
    d, s = torch.distributed, seen.setdefault(folder, dict(last=1 << 60, n=0))
    if step < s["last"]:
        s.update(n=s["n"] + 1, name=time.strftime("run-%Y%m%d-%H%M%S-") + os.urandom(2).hex())
        if d.is_available() and d.is_initialized(): s["name"] = d.distributed_c10d._get_default_store().compare_set(f"plumbline {folder} {s['n']}", "", s["name"]).decode()
    s["last"] = step
    return s["name"]
def write(path, t, meta):  # the whole file or none, and never over another
    if os.path.exists(path): raise FileExistsError(f"{path} is there already: name another folder")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    data = safetensors.torch.save({k: x.detach().cpu().contiguous().clone() for k, x in t.items()}, {"plumbline": json.dumps(meta, allow_nan=False)})
    with open(path + ".part", "wb") as f: f.write(data)
    os.replace(path + ".part", path)
def install(cls, folder="dumps", steps=range(1, 21), strict=False):
    if trl.__version__ != "1.16.0": warnings.warn(f"plumbline: this hook was tested with trl 1.16.0, this is {trl.__version__}")
    frames = {}  # of methods, by name: the variables of a frame that is held outlive its return
    def label(self, v, out):  # TRL shuffles the rows afterwards: what the loss does not read travels with them
        group = torch.arange(len(v["rewards"]), device=v["rewards"].device) // v["num_generations"] + self._step * 1000000
        out.update({k: x[v["process_slice"]] for k, x in dict(scores=v["rewards"], rewards_per_func=v["rewards_per_func"], group_id=group).items()})
        out.update({k: v[k] for k in ("old_per_token_logps", "ref_per_token_logps") if v[k] is not None})
    def dump(self, v, loss):
        step, acc, parts = self.state.global_step + 1, self.accelerator, self.current_gradient_accumulation_steps
        if not self.model.training or step not in steps: return
        path = os.path.join(folder, run := run_id(folder, step), f"step_{step:06d}_rank_{acc.process_index}_mb_{self._step % parts}.safetensors")
        x, lp = {**v["inputs"], **v}, v["per_token_logps"]
        (dlogp,) = torch.autograd.grad(loss, lp, retain_graph=True, materialize_grads=True)
        t = {k: x[name] for k, name in NAMES.items() if x.get(name) is not None} | dict(dlogp=dlogp)
        options = {k: o for k in trl.RLOOConfig.__annotations__ if isinstance(o := getattr(self.args, k), (int, float, str, type(None)))} | dict(
            gradient_accumulation_steps=parts, reward_weights=self.reward_weights.tolist(), reward_clip_range=self.reward_clip_range and list(self.reward_clip_range), eos_token_id=self.eos_token_ids)
        scalars = {k: m[-1] if math.isfinite(m[-1]) else None for k, m in dict(self._metrics["train"], loss=[loss.item()]).items() if k == "loss" or
                   acc.num_processes == 1 and k.startswith(("entropy", "clip_ratio"))}  # with several ranks these are means over them; kl is one of a rollout
        meta = dict(schema=1, framework="trl", version=trl.__version__, algorithm="rloo", run=run, step=step, rank=acc.process_index, world_size=acc.num_processes,
            micro_batch=self._step % parts, micro_batches=parts, options=options, scalars=scalars, scalars_scope="micro_batch")
        write(path, t, meta)
    def wrap(name, inner, look):
        def run(self, *args, method=getattr(cls, name)):
            out = method(self, *args)
            try: look(self, frames.pop(name).f_locals, out)
            except () if strict else Exception as e: warnings.warn(f"plumbline: {name} not dumped, training goes on: {type(e).__name__}: {e}")
            return out
        setattr(cls, name, run)
        setattr(cls, inner, lambda self, *a, method=getattr(cls, inner), **k: frames.update({sys._getframe(1).f_code.co_name: sys._getframe(1)}) or method(self, *a, **k))
    wrap("_compute_loss", "_get_per_token_logps_and_entropies", dump), wrap("_generate_and_score_completions", "_calculate_rewards", label)

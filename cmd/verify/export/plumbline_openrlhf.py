"""Dumps what the losses of OpenRLHF 0.11.2's PPO are made of; then: verify dump dumps --profile openrlhf-ppo@0.11 (or openrlhf-group@0.11)
With this file on the PYTHONPATH of the workers, append to openrlhf/utils/deepspeed/deepspeed.py:
    import plumbline_openrlhf; plumbline_openrlhf.install(DeepspeedStrategy)    # steps 1 to 20 into dumps/run-…, a new folder for each run, the critic's into dumps/critic/run-…
What cannot be dumped is a warning and training goes on; strict=True raises."""
import hashlib, importlib.metadata, json, os, sys, time, warnings, safetensors.torch, torch
NAMES = dict(logp_new="action_log_probs", kl="kl", values_new="values", loss="loss", pg_loss="actor_loss", kl_loss="kl_loss",
             entropy_loss="entropy_loss", value_loss="critic_loss")
def flat(args, name):  # flags under their names on the command line
    if hasattr(args, "__dict__"): return {k: x for n, a in vars(args).items() for k, x in flat(a, f"{name}.{n}").items()}
    return {name: args} if isinstance(args, (int, float, str, list, tuple, type(None))) else {}
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
def install(strategy, folder="dumps", steps=range(1, 21), strict=False):
    version, backward, at = importlib.metadata.version("openrlhf"), strategy.backward, {}
    if version != "0.11.2": warnings.warn(f"plumbline: this hook was tested with openrlhf 0.11.2, this is {version}")
    def dump(self, v, loss):  # v: the variables of training_step, which calls backward
        e, actor, info, dynamic = v["experience"], "action_log_probs" in v, v["loss_batch_info"], self.args.train.dynamic_batch_enable
        (step, micro), gas = at.get(actor, (1, 0)), 1 if dynamic else self.accumulated_gradient
        at[actor] = (step + 1, 0) if (v["self"].replay_buffer.dynamic_optimizer_step[v["step"]] if dynamic else micro + 1 == gas) else (step, micro + 1)
        if step not in steps: return
        rank, T = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0, e.action_mask.shape[1]
        path = os.path.join(at_folder := os.path.join(folder, "" if actor else "critic"), run := run_id(at_folder, step), f"step_{step:06d}_rank_{rank}_mb_{micro}.safetensors")
        t = {k: v.get(n) for k, n in NAMES.items() if actor or k != "loss"} | dict(input_ids=e.sequences, attention_mask=e.attention_mask,
            response_ids=e.sequences[:, -T:], response_mask=e.action_mask, logp_old=e.action_log_probs, logp_ref=e.base_action_log_probs,
            logp_gen=e.rollout_log_probs, values=e.values, returns=e.returns, advantages=e.advantages, scores=e.rewards, entropy=getattr(v.get("output"), "entropy", None))
        t["dlogp" if actor else "dvalues"] = torch.autograd.grad(loss, t["logp_new" if actor else "values_new"], retain_graph=True, materialize_grads=True)[0]
        if e.prompts: t["group_id"] = torch.tensor([int(hashlib.md5(str(p).encode()).hexdigest()[:12], 16) for p in e.prompts])
        t = {k: x / gas if "loss" in k or k in ("dlogp", "dvalues") else x[:, -T:] if k == "entropy" else x for k, x in t.items() if torch.is_tensor(x)}  # as DeepSpeed does
        o = {k: x for s in ("actor", "critic", "algo", "reward", "rollout", "train") for k, x in flat(getattr(self.args, s), s).items()}
        o |= {"num_items_in_batch": round(float(info["batch_num_tokens"]) * gas), "agg.denominator": "global"} | ({"kl.beta": float(v["kl_ctl"])} if actor else {})
        m = dict(schema=1, framework="openrlhf", version=version, algorithm="grpo" if e.values is None else "ppo", run=run, step=step, micro_batch=micro, rank=rank,
                 world_size=info["dp_size"], options=o, token_loss_includes_kl=False)
        write(path, t, m)
    def run(self, loss, *a, **k):
        try: "experience" in sys._getframe(1).f_locals and dump(self, sys._getframe(1).f_locals, loss)
        except () if strict else Exception as e: warnings.warn(f"plumbline: not dumped, training goes on: {e!r}")
        return backward(self, loss, *a, **k)
    strategy.backward = run

"""Dumps what the losses of verl 0.9.1 are made of; then: verify dump dumps --profile verl-grpo@0.9 (or verl-ppo@0.9)
With this file on the PYTHONPATH of the workers: actor_rollout_ref.model.external_lib=plumbline_verl critic.model.external_lib=plumbline_verl
Steps 1 to 20 go into $PLUMBLINE_DUMPS/run-… (dumps/run-…), a new folder for each run, the critic's into critic/run-… A failure is a warning, PLUMBLINE_STRICT=1 raises."""
import hashlib, importlib.metadata, json, os, sys, time, traceback, warnings, safetensors.torch, torch
import verl.trainer.ppo.core_algos as core, verl.utils.tensordict_utils as tdu, verl.workers.utils.losses as losses
NAMES = dict(logp_new="log_prob", logp_old="old_log_probs", logp_gen="rollout_log_probs", logp_ref="ref_log_prob", kl="kld", values_new="vpreds",
             token_rewards="token_level_rewards", response_ids="responses", is_weights="rollout_is_weights", value_loss="vf_loss", loss="policy_loss",
             **{k: k for k in ("response_mask", "advantages", "returns", "values", "entropy", "entropy_loss", "kl_loss", "token_loss")})
VERSION, held, STEPS = importlib.metadata.version("verl"), {}, range(1, 21)
if VERSION != "0.9.1": warnings.warn(f"plumbline: this hook was tested with verl 0.9.1, this is {VERSION}")
def keep(of, name, look):  # of the last call of a function; a frame that is held keeps its variables beyond its return
    setattr(of, name, lambda *a, real=getattr(of, name), **k: held.update(look(a, k, sys._getframe(1))) or real(*a, **k))
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
def dump(at, config, data, loss):
    v = {k: tdu.get(data, k) for k in data.keys()} | dict(token_loss=held.pop("token_loss", None)) | held.pop("frame").f_locals
    (B, T), actor = v["response_mask"].shape, "log_prob" in v
    pad = lambda x: torch.nn.functional.pad(y := x.to_padded_tensor(0), (0, T - y.shape[1])) if x.is_nested else x
    t = {k: pad(v[n]) for k, n in NAMES.items() if torch.is_tensor(v.get(n)) and (actor or k != "token_loss")}
    t["dlogp" if actor else "dvalues"] = torch.autograd.grad(loss, v["log_prob" if actor else "vpreds"], retain_graph=True, materialize_grads=True)[0]
    t |= dict(scores=pad(v["token_level_scores"]).sum(-1), group_id=torch.tensor([int(hashlib.md5(str(u).encode()).hexdigest()[:12], 16) for u in v["uid"]]))
    o = {k: o for c in (config, getattr(config, "policy_loss", config)) for k, o in vars(c).items() if k[0] != "_" and isinstance(o, (int, float, str, type(None)))}
    o |= {"num_items_in_batch": v["batch_num_tokens"], "agg.denominator": "global", "use_kl_in_reward": not torch.equal(pad(v["token_level_scores"]), t["token_rewards"])} | {
        "num_mini_batches": f.f_locals["batch_size_per_dp"] // f.f_locals["mini_batch_size_per_gpu"] for f, _ in traceback.walk_stack(sys._getframe()) if f.f_code.co_name == "train_mini_batch"}
    m = dict(schema=1, framework="verl", version=VERSION, algorithm="ppo" if "values" in v else "grpo", step=at["step"], micro_batch=at["micro"], options=o,
             rank=torch.distributed.get_rank() if torch.distributed.is_initialized() else 0, world_size=v["dp_size"], token_loss_includes_kl=False)
    path = f"{(folder := os.environ.get('PLUMBLINE_DUMPS', 'dumps') + ('' if actor else '/critic'))}/{(run := run_id(folder, at['step']))}/step_{at['step']:06d}_rank_{m['rank']}_mb_{at['micro']}.safetensors"
    at |= dict(step=at["step"] + 1, rows=0, micro=0) if at["rows"] + B >= v["global_batch_size"] // v["dp_size"] else dict(rows=at["rows"] + B, micro=at["micro"] + 1)
    write(path, t, m | dict(run=run))
def wrap(real, at):
    def run(config, model_output, data, dp_group=None):
        loss, metrics = real(config, model_output, data, dp_group)
        try: torch.is_grad_enabled() and at["step"] in STEPS and dump(at, config, data, loss)
        except () if os.environ.get("PLUMBLINE_STRICT") else Exception as e: warnings.warn(f"plumbline: {real.__name__} not dumped, training goes on: {e!r}")
        return loss, metrics
    for m in [m for m in list(sys.modules.values()) if getattr(m, "__dict__", {}).get(real.__name__) is real]: setattr(m, real.__name__, run)
keep(losses, "no_padding_2_padding", lambda a, k, frame: dict(frame=frame)), keep(core, "agg_loss", lambda a, k, _: dict(token_loss=k.get("loss_mat", a[0] if a else None)))
wrap(losses.ppo_loss, dict(step=1, rows=0, micro=0)), wrap(losses.value_loss, dict(step=1, rows=0, micro=0))

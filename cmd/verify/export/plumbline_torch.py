"""Writes dumps for `verify dump` from any training loop in PyTorch (tested with torch 2.15.0).

    from plumbline_torch import dump
    dump("dumps", step, options={"clip.low": 0.2, "kl.beta": 0.04}, meta={"algorithm": "grpo", "scalars": {"kl": 0.01}},
         response_mask=mask, logp_new=logp, logp_old=old, advantages=adv, loss=loss)

Call it before backward(): dlogp and dvalues are then added, if the loss hangs on logp_new and values_new. Tensors are [B,T] over
response tokens, on any device; None is left out. The files go into dumps/run-…, a new folder for each run. options are the trainer's own names or plumbline's; meta may say framework,
version, profile, micro_batch, micro_batches, rank, world_size, align, scalars. The first of the calls that give the same step,
rank and micro_batch counts. What cannot be dumped is a warning and training goes on; strict=True raises."""
import json, math, os, time, warnings, torch
from safetensors.torch import save

TOKENS = "logp_new logp_old logp_gen logp_ref values values_new token_rewards kl returns entropy token_loss dlogp dvalues response_ids".split()

def run_id(folder, step, seen={}):  # of all ranks the name that the first to ask has found; where the steps begin anew, so does a run
    d, s = torch.distributed, seen.setdefault(folder, dict(last=1 << 60, n=0))
    if step < s["last"]:
        s.update(n=s["n"] + 1, name=time.strftime("run-%Y%m%d-%H%M%S-") + os.urandom(2).hex())
        if d.is_available() and d.is_initialized(): s["name"] = d.distributed_c10d._get_default_store().compare_set(f"plumbline {folder} {s['n']}", "", s["name"]).decode()
    s["last"] = step
    return s["name"]

def dump(path, step, options=None, meta=None, strict=False, **tensors):
    """Writes the file path, or one in the folder path, and returns its name; None if it could not."""
    try:
        t = {k: torch.as_tensor(x) for k, x in tensors.items() if x is not None}
        for grad, of, x in (("dlogp", "loss", "logp_new"), ("dvalues", "loss", "values_new"), ("dvalues", "value_loss", "values_new")):
            if grad not in t and of in t and x in t and t[of].requires_grad and t[x].requires_grad:
                found = torch.autograd.grad(t[of], t[x], retain_graph=True, allow_unused=True)[0]
                t.update({} if found is None else {grad: found})
        ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
        m = dict(schema=1, framework="torch", version=torch.__version__, align="response", step=int(step), micro_batch=0,
                 rank=torch.distributed.get_rank() if ranks else 0, world_size=torch.distributed.get_world_size() if ranks else 1) | (meta or {})
        m.update(options=options or {}, scalars={k: float(x) if math.isfinite(x) else None for k, x in m.get("scalars", {}).items()})
        wrong = [f"{k} {list(t[k].shape)}" for k in TOKENS if k in t and "response_mask" in t and t[k].shape != t["response_mask"].shape]
        if wrong and m["align"] == "response":
            raise ValueError(f"{', '.join(wrong)}: want the shape of response_mask, {list(t['response_mask'].shape)}")
        if not str(path).endswith(".safetensors"):
            m["run"] = run_id(str(path), m["step"])
            path = os.path.join(path, m["run"], f"step_{m['step']:06d}_rank_{m['rank']}_mb_{m['micro_batch']}.safetensors")
        if os.path.exists(path): raise FileExistsError(f"{path} is there already: another micro_batch or folder?")
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        data = save({k: x.detach().to("cpu", copy=True).contiguous() for k, x in t.items()}, {"plumbline": json.dumps(m, allow_nan=False)})
        with open(f"{path}.part", "wb") as f: f.write(data)
        os.replace(f"{path}.part", path)
        return path
    except () if strict else Exception as e: warnings.warn(f"plumbline: step {step} not dumped, training goes on: {type(e).__name__}: {e}")

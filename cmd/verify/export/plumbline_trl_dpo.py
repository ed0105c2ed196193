"""Dumps what the losses of TRL 1.16.0's DPOTrainer are made of; then: verify dump dumps
    from plumbline_trl_dpo import install; install(DPOTrainer)    # before train(); steps 1 to 20 go into dumps/run-…, a new folder for each run
What cannot be dumped is a warning and training goes on; strict=True raises."""
import json, math, os, sys, time, warnings, safetensors.torch, torch, trl
LISTS = "loss_type", "loss_weights"
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
    def dump(self, v, loss, at):
        step, acc, parts = self.state.global_step + 1, self.accelerator, self.current_gradient_accumulation_steps
        if not self.model.training: return
        at.update(step=step, mb=at["mb"] + 1 if at.get("step") == step else 0)
        if step not in steps: return
        path = os.path.join(folder, run := run_id(folder, step), f"step_{step:06d}_rank_{acc.process_index}_mb_{at['mb']}.safetensors")
        t, mask, whole = dict(loss=loss), v["shift_completion_mask"].bool().chunk(2), v["completion_mask"].chunk(2)
        grads = torch.autograd.grad(loss, (v["chosen_logps"], v["rejected_logps"]), retain_graph=True, materialize_grads=True)
        for i, side in enumerate(("chosen", "rejected")):
            t |= {"logp_" + side: v[side + "_logps"], "ref_" + side: v[f"ref_{side}_logps"], "dlogp_" + side: grads[i], side + "_mask": mask[i],
                  side + "_tokens": whole[i].sum(1), side + "_token_logps": v["per_token_logps"].chunk(2)[i]}
            if "ref_per_token_logps" in v: t[f"ref_{side}_token_logps"] = v["ref_per_token_logps"].chunk(2)[i]
        if len(v["self"].loss_types) == 1: t["pair_loss"] = v["per_sequence_loss"]
        t |= ({"nll_loss": v["batch_loss"]} if "batch_loss" in v else {}) | ({"pair_weights": v["chosen_weights"] * v["rejected_weights"]} if self.use_weighting else {})
        options = {k: o for k in trl.DPOConfig.__annotations__ if isinstance(o := getattr(self.args, k), (int, float, str, type(None))) or k in LISTS}
        scalars = {k: m[-1] if math.isfinite(m[-1]) else None for k, m in dict(self._metrics["train"], loss=[loss.item()]).items() if k == "loss" or
                   acc.num_processes == 1 and k.startswith(("rewards/", "logps/"))}  # with several ranks these are means over them
        meta = dict(schema=1, framework="trl", version=trl.__version__, algorithm="dpo", run=run, step=step, rank=acc.process_index, world_size=acc.num_processes,
            micro_batch=at["mb"], micro_batches=parts, options={**options, "gradient_accumulation_steps": parts, "agg.div_ga": False}, scalars=scalars, scalars_scope="micro_batch")
        write(path, dict(t, response_mask=mask[0]), meta)  # the Trainer divides the loss by the accumulation steps behind this method
    def compute_loss(self, *args, method=cls._compute_loss, at={}):
        acc, frames = self.accelerator, []  # its variables outlive the return of a frame that is held
        acc.gather = lambda x, real=acc.gather: frames.append(sys._getframe(1)) or real(x)  # what the loss logs last
        try: out = method(self, *args)
        finally: del acc.gather
        try: dump(self, frames[-1].f_locals, out[0] if isinstance(out, tuple) else out, at)
        except () if strict else Exception as e: warnings.warn(f"plumbline: _compute_loss not dumped, training goes on: {type(e).__name__}: {e}")
        return out
    cls._compute_loss = compute_loss

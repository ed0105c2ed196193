"""Files in the format that `verify explain dump` prints."""

import json
import math
import os

import torch
from safetensors.torch import save_file


def write(folder, tensors, meta, schema=1):
    out = {}
    for k, t in tensors.items():
        if t is not None:
            t = t.detach()
            if k in ("response_mask", "attention_mask", "dones"):
                t = t.bool()
            elif k in ("input_ids", "response_ids", "group_id", "prompt_len"):
                t = t.to(torch.int32)
            out[k] = t.contiguous().clone()
    meta = dict(meta, schema=schema)
    meta["scalars"] = {k: (float(v) if math.isfinite(v) else None) for k, v in meta.get("scalars", {}).items()}
    name = f"step_{meta['step']:06d}_rank_{meta.get('rank', 0)}_mb_{meta.get('micro_batch', 0)}.safetensors"
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    if os.path.exists(path):
        raise FileExistsError(path)
    save_file(out, path, metadata={"plumbline": json.dumps(meta, sort_keys=True, allow_nan=False)})

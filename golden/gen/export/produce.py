"""Produces golden/export: what transformers computes from the folders that `train export` writes.

    python golden/gen/export/produce.py bin/train golden/export      (torch 2.15.0, transformers 5.23.0, peft 0.21.2, safetensors 0.8.0)

Of the embedded masked model, the embedded judge, and two small models that are made here (with biases; a judge whose CLS has an embedding
of its own) it keeps the sha256 of every file of the export, ids, and logits in float64, with and without padding. The encoder of a short
run of `train arc` and the adapter of one of `train shielded` are loaded as well, and nothing of them is kept. Every load must take all
tensors and miss none. transformers computes angles in float32 whatever the type of the model: here those of sdpa are float64, and eager
attention, with the angles and the softmax of transformers, must agree to float32.
"""
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile

import peft
import safetensors
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer

SEED = 20261123
TEXT = "Shall I compare thee to a summer's day?"


def small(folder, judge):
    """A model of nanoGPT's layout with biases, whose weights are far from their initial ones."""
    c, layers, vocab = 16, 2, 12
    config = {"model_type": "maskedgpt", "mode": "sequence_scorer" if judge else "language_model", "n_layer": layers, "n_head": 2, "n_embd": c, "block_size": 12,
              "vocab_size": vocab, "bias": True, "attention_type": "bidirectional", "position_encoding": "rotary", "mask_token_id": 8, "pad_token_id": 9}
    g = torch.Generator().manual_seed(SEED + judge)
    w = {"transformer.wte.weight": torch.randn(vocab, c, generator=g)}

    def layer(name, *shape, norm=False):
        w[name + ".weight"] = torch.randn(*shape, generator=g) * (0.3 if norm else 0.4) + (1 if norm else 0)
        w[name + ".bias"] = torch.randn(shape[0], generator=g) * 0.3

    for i in range(layers):
        p = f"transformer.h.{i}."
        layer(p + "ln_1", c, norm=True)
        layer(p + "attn.c_attn", 3 * c, c)
        layer(p + "attn.c_proj", c, c)
        layer(p + "ln_2", c, norm=True)
        layer(p + "mlp.c_fc", 4 * c, c)
        layer(p + "mlp.c_proj", c, 4 * c)
    layer("transformer.ln_f", c, norm=True)
    if judge:
        config.update(cls_token_id=10, cls_embedding=True)
        w["cls_embedding"] = torch.randn(c, generator=g)
        w["sequence_head.base_predictor.weight"] = torch.randn(1, c, generator=g)
        w["sequence_head.A"], w["sequence_head.B"] = torch.tensor([1.7]), torch.tensor([-0.3])
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
    with open(os.path.join(folder, "vocabulary.json"), "w") as f:
        json.dump({"characters": "abcdef \n"}, f)
    save_file(w, os.path.join(folder, "model.safetensors"), {"format": "pt"})


def whole(loaded):
    model, info = loaded
    assert not any(info.values()), info
    return model.double().eval()


def wide(model):
    """Makes the angles of rotary positions float64, by the formula of the model's own buffer."""
    rotary = model.base_model.rotary_emb
    d = rotary.inv_freq.numel() * 2
    inverse = 1 / 10000 ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
    torch.testing.assert_close(rotary.inv_freq.double(), inverse, rtol=1e-6, atol=0)

    def forward(x, position_ids):
        angle = position_ids[..., None].double() * inverse
        angle = torch.cat([angle, angle], -1)
        return angle.cos(), angle.sin()

    rotary.forward = forward


def main(train, out):
    train = os.path.abspath(train)
    cases = []
    with tempfile.TemporaryDirectory() as tmp, torch.no_grad():
        run = lambda *args: subprocess.run([train, *args], check=True, cwd=tmp, stdout=subprocess.DEVNULL)
        for judge in (False, True):
            small(os.path.join(out, "biased_judge" if judge else "biased"), judge)
        for name in ("tiny_masked", "tiny_judge", "biased", "biased_judge"):
            judge = name.endswith("judge")
            source = name if name.startswith("tiny") else os.path.abspath(os.path.join(out, name))
            run("export", "--model", source, "--output", name)
            folder = os.path.join(tmp, name)
            tokenizer = AutoTokenizer.from_pretrained(folder)
            text = TEXT if name.startswith("tiny") else "bad cafe"
            assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
            ids = tokenizer(text, return_tensors="pt")["input_ids"]
            if judge:
                ids = torch.cat([torch.tensor([[tokenizer.cls_token_id]]), ids], 1)
            else:
                ids[0, 2:5] = tokenizer.mask_token_id
            short = ids.clone()
            short[0, -3:] = tokenizer.pad_token_id
            real = torch.ones_like(ids)
            real[0, -3:] = 0
            auto = AutoModelForTokenClassification if judge else AutoModelForCausalLM
            for implementation in ("sdpa", "eager"):
                model = whole(auto.from_pretrained(folder, output_loading_info=True, attn_implementation=implementation))
                if implementation == "sdpa":
                    wide(model)
                logits, padded = model(input_ids=ids).logits, model(input_ids=short, attention_mask=real).logits[:, :-3]
                if judge:
                    logits, padded = logits[:, 0], padded[:, 0]
                if implementation == "sdpa":
                    first = logits, padded
            for a, b in zip(first, (logits, padded)):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
            files = {f: hashlib.sha256(open(os.path.join(folder, f), "rb").read()).hexdigest() for f in sorted(os.listdir(folder))}
            cases.append({"model": name, "class": type(model).__name__, "files": files, "ids": ids[0].tolist(), "logits": first[0].flatten().tolist(), "pad": 3,
                          "padded": first[1].flatten().tolist()})
        run("arc", "output_dir=arc", "epochs=1", "max_batches=1", "tasks=2")
        run("export", "--model", "arc", "--output", "encoder")
        print(type(whole(AutoModel.from_pretrained(os.path.join(tmp, "encoder"), output_loading_info=True))).__name__)
        run("shielded", "output_dir=shielded", "steps=1", "ppo_batch=4", "sim_batch=4", "micro_batch_size=4", "max_new_tokens=8")
        os.chdir(os.path.join(tmp, "shielded"))
        print(type(peft.AutoPeftModelForCausalLM.from_pretrained("final")).__name__)
        os.chdir("/")
    with open(os.path.join(out, "logits.json"), "w") as f:
        json.dump(cases, f)
        f.write("\n")
    sums = {}
    for at, _, names in os.walk(out):
        for name in names:
            path = os.path.join(at, name)
            if name != "manifest.json":
                sums[os.path.relpath(path, out)] = hashlib.sha256(open(path, "rb").read()).hexdigest()
    manifest = {"producer": "golden/gen/export/produce.py", "seed": SEED, "sha256": dict(sorted(sums.items())),
                "versions": {"python": platform.python_version(), "torch": torch.__version__.split("+")[0], "transformers": transformers.__version__,
                             "peft": peft.__version__, "safetensors": safetensors.__version__}}
    with open(os.path.join(out, "manifest.json"), "w") as f:
        json.dump(manifest, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main(sys.argv[1], os.path.abspath(sys.argv[2]))

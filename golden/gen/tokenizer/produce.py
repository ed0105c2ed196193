"""Writes golden/tokenizer: tokenizers of every family, hashes of what they make of 20,000 strings and of
every character, and what chat templates render.

    python golden/gen/tokenizer/produce.py --inputs shared/golden_inputs --out golden/tokenizer [--template NAME=FILE ...]
    python golden/gen/tokenizer/produce.py --out golden/tokenizer --show KIND I

The small tokenizers are trained here, on other strings of the same generator; smollm2.json.gz is the tokenizer.json of
--inputs, compressed, and strings.json its 150 strings, which are encoded again and must be as they were. A template is a
chat template as text, or a tokenizer_config.json that holds one; golden/tokenizer keeps its hash and what it renders. Those
kept are of ChatML, Qwen1.5-Chat, Qwen2-Instruct, Qwen2.5-Instruct (also trl/chat_templates/qwen2_5.jinja of TRL 1.16.0) and
SmolLM2-Instruct.

Python 3.11, tokenizers 0.23.3, transformers 5.23.0.
"""
import argparse
import gzip
import hashlib
import json
import os
import struct

import chat
import strings
import tokenizers
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SEED = 20261121
COUNT, BLOCK = 20_000, 1_000

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|")


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated", invert=False),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)])


def train(pre, normalizer=None, alphabet=True, model=None):
    """A tokenizer trained on texts that were not split, so that it has tokens across the borders of pieces: a splitter that
    puts a border elsewhere then gives other ids."""
    t = Tokenizer(model or models.BPE())
    t.pre_tokenizer, t.decoder = byte_level(use_regex=False), decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    special = [t.model.unk_token] if t.model.unk_token else []
    trainer = trainers.BpeTrainer(vocab_size=1200, show_progress=False, special_tokens=special,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()) if alphabet else [])
    texts = (strings.string(SEED + 1, i) for i in range(4000))
    t.train_from_iterator([s for s in texts if "<" not in s and "[" not in s], trainer)
    t.pre_tokenizer = pre
    return t


def byte_level(**options):
    return pre_tokenizers.ByteLevel(**({"add_prefix_space": False} | options))


def gpt2():
    t = train(byte_level())
    t.post_processor = processors.ByteLevel(trim_offsets=True)
    t.add_special_tokens(["<|endoftext|>", AddedToken("[S]", lstrip=True, rstrip=True)])
    t.add_tokens([AddedToken("[L]", lstrip=True, normalized=False), AddedToken("[R]", rstrip=True, normalized=True),
                  AddedToken("[W]", single_word=True), AddedToken("[LRW]", lstrip=True, rstrip=True, single_word=True, normalized=False),
                  AddedToken("<ab>", normalized=False), AddedToken("<abc>", normalized=False), AddedToken("<a", normalized=False),
                  AddedToken("b>", normalized=False), "[P]"])
    return t


def qwen2():
    t = train(split(QWEN2), normalizers.NFC())
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    t.add_tokens([AddedToken("café", normalized=True), AddedToken("nai\u0308ve", normalized=True), AddedToken("e\u0301x", normalized=False)])
    return t


def llama3():
    t = train(split(LLAMA3))
    t.add_special_tokens(["<|begin_of_text|>", "<|im_start|>", "<|im_end|>"])
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B",
        special_tokens=[("<|begin_of_text|>", t.token_to_id("<|begin_of_text|>"))])])
    return t


def smollm2():
    t = train(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()]))
    t.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return t


def prefix():
    """A space before every text, bytes without a token."""
    return train(byte_level(add_prefix_space=True), alphabet=False)


def unknown():
    """Runs of digits, an unknown token for runs of bytes without one, a token at the end."""
    t = train(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), byte_level()]), alphabet=False,
              model=models.BPE(unk_token="<unk>", fuse_unk=True))
    t.add_special_tokens(["<|endoftext|>"])
    t.post_processor = processors.TemplateProcessing(single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", t.token_to_id("<|endoftext|>"))])
    return t


KINDS = {"gpt2": gpt2, "qwen2": qwen2, "llama3": llama3, "smollm2_small": smollm2, "prefix": prefix, "unknown": unknown}


def edit(kind, text):
    """What no trainer makes: merges in the old form, tokens that no merges lead to, fewer byte tokens."""
    d = json.loads(text)
    model = d["model"]
    if kind == "gpt2":
        model["merges"] = [" ".join(m) for m in model["merges"]]
    if kind == "llama3":
        model["ignore_merges"] = True
        parts = {p for m in model["merges"] for p in m}
        ends = [m for m in model["merges"] if "".join(m) not in parts]
        model["merges"] = [m for m in model["merges"] if m not in ends[::3]]
    if kind in ("prefix", "unknown"):
        rare = set(sorted(c for c in model["vocab"] if len(c) == 1 and c != "Ġ")[::9])
        keep = [v for v in sorted(model["vocab"], key=model["vocab"].get) if v == model["unk_token"] or not rare & set(v)]
        model["merges"] = [m for m in model["merges"] if not rare & set("".join(m))]
        model["vocab"] = {v: i for i, v in enumerate(keep)}
        for i, a in enumerate(sorted((a for a in d["added_tokens"] if a["content"] not in model["vocab"]), key=lambda a: a["id"])):
            a["id"] = len(keep) + i
        ids = {a["content"]: a["id"] for a in d["added_tokens"]}
        for name, entry in ((d["post_processor"] or {}).get("special_tokens") or {}).items():
            entry["ids"] = [ids[name]]
    return json.dumps(d, ensure_ascii=False, indent=None, separators=(",", ":")) + "\n"


class Blocks:
    """A running sha256 whose first 16 digits are kept after every block."""

    def __init__(self):
        self.sum, self.kept = hashlib.sha256(), []

    def add(self, i, data):
        self.sum.update(data)
        if (i + 1) % BLOCK == 0:
            self.kept.append(self.sum.hexdigest()[:16])


def ids_bytes(ids):
    return struct.pack(f"<{len(ids) + 1}I", *ids, 0xFFFFFFFF)


def hashes(path):
    t = Tokenizer.from_str(read(path))
    names = ("strings", "ids", "special", "plain", "decoded", "skipped")
    blocks = {n: Blocks() for n in names}
    for i in range(COUNT):
        s = strings.string(SEED, i)
        ids = t.encode(s, add_special_tokens=False).ids
        blocks["strings"].add(i, s.encode() + b"\xff")
        blocks["ids"].add(i, ids_bytes(ids))
        blocks["special"].add(i, ids_bytes(t.encode(s).ids))
        t.encode_special_tokens = True
        blocks["plain"].add(i, ids_bytes(t.encode(s, add_special_tokens=False).ids))
        t.encode_special_tokens = False
        blocks["decoded"].add(i, t.decode(ids, skip_special_tokens=False).encode() + b"\xff")
        # Every other id, so that characters are torn apart and the decoder has bytes to replace.
        blocks["skipped"].add(i, t.decode(ids[i % 2::2], skip_special_tokens=True).encode() + b"\xff")
    return {n: b.kept for n, b in blocks.items()}


def characters():
    """How every character is classed and normalised: a sha256 for each plane."""
    def absent(pattern):
        p = pre_tokenizers.Split(Regex(pattern), "removed")
        return lambda c: p.pre_tokenize_str(c) == []
    kinds = {"L": absent(r"\p{L}"), "N": absent(r"\p{N}"), "S": absent(r"\s")}
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = Tokenizer(models.BPE())
    words.add_tokens([AddedToken("[W]", single_word=True, normalized=False)])
    nfc = normalizers.NFC().normalize_str
    of = {
        "class": lambda c: next((k for k, f in kinds.items() if f(c)), "."),
        "digit": lambda c: "N" if len(digits.pre_tokenize_str("a" + c)) == 2 else ".",
        "word": lambda c: "." if words.encode(c + "[W]").ids else "W",
        "nfc": lambda c: nfc(c) + "\0" + nfc("a" + c + "\u0323\u0301") + "\0",
    }
    out = {name: [] for name in of}
    for plane in range(17):
        chars = [chr(c) for c in range(plane << 16, (plane + 1) << 16) if not 0xD800 <= c < 0xE000]
        for name, f in of.items():
            out[name].append(hashlib.sha256("".join(map(f, chars)).encode()).hexdigest()[:16])
    return out


def read(path):
    with open(path, "rb") as f:
        data = f.read()
    return (gzip.decompress(data) if path.endswith(".gz") else data).decode()


def write(path, text):
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        f.write(text)


def check_strings(inputs, path):
    with open(os.path.join(inputs, "tokenizer.json"), encoding="utf-8") as f:
        golden = json.load(f)
    assert hashlib.sha256(read(path).encode()).hexdigest() == golden["tokenizer_json_sha256"]
    t = Tokenizer.from_str(read(path))
    for e in golden["entries"]:
        assert t.encode(e["text"], add_special_tokens=False).ids == e["ids"], e["text"]
        assert t.encode(e["text"]).ids == e["ids_default"], e["text"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--inputs", default="shared/golden_inputs")
    p.add_argument("--out", required=True)
    p.add_argument("--template", action="append", default=[])
    p.add_argument("--show", nargs=2)
    a = p.parse_args()
    if a.show:
        name = next(n for n in os.listdir(a.out) if n.split(".")[0] == a.show[0])
        t, s = Tokenizer.from_str(read(os.path.join(a.out, name))), strings.string(SEED, int(a.show[1]))
        e = t.encode(s, add_special_tokens=False)
        print(ascii(s), e.ids, [ascii(x) for x in e.tokens], sep="\n")
        return
    os.makedirs(a.out, exist_ok=True)
    with open(os.path.join(a.inputs, "tokenizer/tokenizer.json"), "rb") as f:
        data = gzip.compress(f.read(), 9, mtime=0)
    with open(os.path.join(a.out, "smollm2.json.gz"), "wb") as f:
        f.write(data)
    with open(os.path.join(a.inputs, "tokenizer.json"), encoding="utf-8") as f:
        write(os.path.join(a.out, "strings.json"), f.read())
    check_strings(a.inputs, os.path.join(a.out, "smollm2.json.gz"))
    for kind, make in KINDS.items():
        write(os.path.join(a.out, kind + ".json"), edit(kind, make().to_str()))
    files = ["smollm2.json.gz"] + [k + ".json" for k in KINDS]
    versions = {"tokenizers": tokenizers.__version__, "transformers": transformers.__version__}
    write(os.path.join(a.out, "hashes.json"), json.dumps({
        "seed": SEED, "count": COUNT, "block": BLOCK, "alphabet": list(strings.ALPHABET.values()),
        "characters": characters(), "tokenizers": {f: hashes(os.path.join(a.out, f)) for f in files}}, indent=1) + "\n")
    if a.template:
        write(os.path.join(a.out, "chat.json"), json.dumps(chat.golden(a.template, os.path.join(a.out, "qwen2.json")), indent=1) + "\n")
    sums = {}
    for name in sorted(os.listdir(a.out)):
        if name != "manifest.json":
            with open(os.path.join(a.out, name), "rb") as f:
                sums[name] = hashlib.sha256(f.read()).hexdigest()
    write(os.path.join(a.out, "manifest.json"), json.dumps(
        {"producer": "golden/gen/tokenizer/produce.py", "versions": versions, "seed": SEED, "sha256": sums}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""verl 0.9.1's and OpenRLHF 0.11.2's own loss functions with the hook that `verify export torch` printed, as it stands.

    python torch_peers.py HOOK.py FOLDER CASE          (a case of golden/gen/dumps/peer_cases.py)

The loop is that of golden/gen/dumps/peer_losses.py, with the hook's dump() in the place of its writer.
"""
import importlib.metadata
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "dumps"))
import shutil
import tempfile

import peer_losses


def unpacked(name, inside, tmp):
    """The package as an unpacked wheel has it: its files and, beside or above them, its .dist-info."""
    dist = importlib.metadata.distribution(name)
    home = os.path.join(tmp, name)
    shutil.copytree(dist.locate_file(name), os.path.join(home, inside, name), ignore=shutil.ignore_patterns("__pycache__"))
    os.makedirs(os.path.join(home, f"{name}-{dist.version}.dist-info"), exist_ok=True)
    return os.path.join(home, inside)


def main():
    hook, folder, name = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("plumbline_torch", hook)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    case = next(c for c in peer_losses.CASES if c.folder == name)

    def write(path, tensors, meta):
        meta = dict(meta)
        module.dump(folder, meta.pop("step"), options=meta.pop("options"), meta=meta, strict=True, **tensors)

    peer_losses.writer.write = write
    with tempfile.TemporaryDirectory() as tmp:
        inside = "" if case.framework == "verl" else os.path.join(f"{case.framework}.data", "purelib")
        for place in peer_losses.run(case, {case.framework: unpacked(case.framework, inside, tmp)}, folder):
            print("planted in", place)


if __name__ == "__main__":
    main()

"""Fetches and unpacks the releases of golden/museum/rows: python wheels.py FOLDER. The sha256 of the wheels go into sha256.json."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ALSO = ["verl-0.9.1", "transformers-4.49.0", "trl-1.16.0", "liger-kernel-0.8.5"]  # what stands around a case, and of findings.py
ALSO += ["trl-1.0.0", "verl-0.6.0", "openrlhf-0.10.4"]  # of releases.py


def releases(path):
    out = set(ALSO)
    for line in open(path, encoding="utf-8"):
        if " | " in line and not line.startswith("#"):
            out |= {x.strip() for x in line.split(" | ")[3:5]}
    return sorted(out)


def main():
    root = sys.argv[1]
    os.makedirs(root, exist_ok=True)
    sums = os.path.join(root, "sha256.json")
    known = json.load(open(sums)) if os.path.exists(sums) else {}
    for name in releases(os.path.join(HERE, "..", "..", "museum", "rows")):
        to = os.path.join(root, name)
        if os.path.isdir(to) and name in known:
            continue
        part = to + ".part"
        shutil.rmtree(part, ignore_errors=True)
        package, version = name.rsplit("-", 1)
        other = ["--platform", "manylinux1_x86_64", "--python-version", "3.10", "--implementation", "cp"] if package == "openrlhf" else []
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "--ignore-requires-python", "-d", part, *other, f"{package}=={version}"]
        if subprocess.run(pip).returncode:
            print(f"{name}: no wheel")  # its rows say so and are not counted
            continue
        (wheel,) = (n for n in os.listdir(part) if n.endswith(".whl"))
        known[name] = f"{wheel} sha256 {hashlib.sha256(open(os.path.join(part, wheel), 'rb').read()).hexdigest()}"
        with zipfile.ZipFile(os.path.join(part, wheel)) as z:
            z.extractall(part, [n for n in z.namelist() if n.endswith(".py")])
        os.remove(os.path.join(part, wheel))
        shutil.rmtree(to, ignore_errors=True)
        os.rename(part, to)
        with open(sums, "w") as f:
            json.dump(known, f, indent=1)


if __name__ == "__main__":
    main()

"""Fetches and unpacks the releases whose text the bench executes: python wheels.py FOLDER."""

import os
import subprocess
import sys
import zipfile

PINS = [
    "trl==1.16.0",
    "trl==1.12.0",
    "trl==1.9.0",
    "trl==1.8.0",
    "trl==0.22.2",
    "trl==0.22.1",
    "trl==0.16.0",
    "trl==0.15.2",
    "verl==0.9.1",
    "verl==0.9.0",
    "verl==0.8.0",
    "openrlhf==0.11.2",
]


def main():
    root = sys.argv[1]
    os.makedirs(root, exist_ok=True)
    for pin in PINS:
        to = os.path.join(root, pin.replace("==", "-"))
        if os.path.isdir(to):
            continue
        part = to + ".part"
        other = ["--platform", "manylinux1_x86_64", "--python-version", "3.11"] if pin.startswith("openrlhf") else []
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "--only-binary",
                ":all:",
                "--ignore-requires-python",
                "-d",
                part,
                *other,
                pin,
            ],
            check=True,
        )
        (wheel,) = (n for n in os.listdir(part) if n.endswith(".whl"))
        with zipfile.ZipFile(os.path.join(part, wheel)) as z:
            z.extractall(part)
        os.remove(os.path.join(part, wheel))
        os.rename(part, to)


if __name__ == "__main__":
    main()

"""The exported pytest file passes on a right implementation and fails, with the right words, on every wrong one.

    python check_pytest.py test_ppo_golden.py
"""
import contextlib
import io
import multiprocessing
import os
import sys
import tempfile

import pytest
import torch

import tutorial


def run(test, folder, pipe):
    """pytest in a process that has torch already."""
    os.environ["PPO_MODULE"], sys.path[:0] = "ppo_trainer", [folder]
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = pytest.main(["-q", "-p", "no:cacheprovider", "--tb=short", "--rootdir", folder, os.path.abspath(test)])
    pipe.send((int(code), out.getvalue()))


def judged(test, folder):
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=run, args=(test, folder, there))
    process.start()
    there.close()
    answer = here.recv()
    process.join()
    return answer


def main():
    test, bad = sys.argv[1], []
    cases = [("right", open(tutorial.__file__, encoding="utf-8").read(), "")] + list(tutorial.tutorial_wrong())
    for name, source, words in cases:
        with tempfile.TemporaryDirectory() as folder:
            open(os.path.join(folder, "ppo_trainer.py"), "w", encoding="utf-8").write(source)
            code, out = judged(test, folder)
        message = next((line for line in out.splitlines() if line.startswith("E ") and words in line), "")
        ok = code == 0 if not words else code == 1 and bool(message)
        print(f"{'ok ' if ok else 'BAD'} {name:28s} exit {code}  {message[2:150].strip()}", flush=True)
        if not ok:
            bad.append(name)
            print(out[-2500:])
    print(f"pytest file: passes on the right implementation, fails on {len(cases) - 1} wrong ones" if not bad else f"NOT AS EXPECTED: {bad}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()

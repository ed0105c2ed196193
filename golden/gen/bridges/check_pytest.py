"""The exported pytest file passes on a right implementation and fails, with the right words, on every wrong one.

    python check_pytest.py test_ppo_golden.py
"""
import os
import subprocess
import sys
import tempfile

import tutorial


def pytest(test, folder):
    env = dict(os.environ, PYTHONPATH=folder, PPO_MODULE="ppo_trainer", OMP_NUM_THREADS="1")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", os.path.abspath(test)], cwd=folder, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout


def main():
    test, bad = sys.argv[1], []
    cases = [("right", open(tutorial.__file__, encoding="utf-8").read(), "")] + list(tutorial.tutorial_wrong())
    for name, source, words in cases:
        with tempfile.TemporaryDirectory() as folder:
            open(os.path.join(folder, "ppo_trainer.py"), "w", encoding="utf-8").write(source)
            code, out = pytest(test, folder)
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

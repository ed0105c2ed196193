"""verl's functions in a worker of Ray, on the CPU: the script itself imports nothing that plumbline hooks.

    plumbline run ray_toy.py [arguments of verl_toy.py behind its first]
"""
import os
import sys

import ray

TOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "verl_toy.py")


@ray.remote
def work(args):
    import runpy
    sys.argv = [TOY, "-", *args]
    sys.path.insert(0, os.path.dirname(TOY))
    runpy.run_path(TOY, run_name="__main__")
    return os.getpid(), "plumbline.verl" in sys.modules


if __name__ == "__main__":
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # no token in the home of who runs this
    ray.init(num_cpus=1, include_dashboard=False)
    pid, hooked = ray.get(work.remote(sys.argv[1:]))
    print("another process" if pid != os.getpid() else "this process", "hooked" if hooked else "not hooked")
    assert "plumbline.verl" not in sys.modules

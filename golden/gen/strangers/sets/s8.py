"""s3 and s4 in other precisions: the whole model in float64, in bfloat16 (log-softmax upcast to float32). As full or lazy as theirs."""

import random
import s3, s4, s2
from world_s import *

P = {}
for n, (mod, s) in enumerate([(s3, 20), (s3, 23), (s4, 20), (s3, 30), (s4, 23), (s4, 26), (s2, 20), (s2, 22), (s3, 35)]):
    c = mod.draw(s)
    if mod is s3 and c["agg"] == "token-sum":
        c["agg"] = "token-mean"
    for d, dt in (("f64", torch.float64), ("bf16", torch.bfloat16)):
        if mod is s2 and d == "bf16":
            continue
        if n % 2 and d == "f64" and mod is s3:
            continue
        P[f"h_{len(P):02d}_{mod.__name__}_{d}_{s}"] = (mod, c, dt)
CASES = {k: v[1] for k, v in P.items()}


def run(out, case):
    mod, c, dt = P[case]
    if mod is s2:
        s2.ppo(out, case, "s8", dt, CASES)
    else:
        mod.run(out, case, "s8", CASES, dt)


main("s8", CASES, run)

"""verl 0.9.1's own functions with critic: GAE, value loss, actor losses; everything in one file for each micro-batch."""

from world_q_verl import *

names = {}
for s in range(13):
    c = table(s, 1)
    names[f"h_{s:02d}_{c['loss_mode']}_lam{c['lam']}"] = c
if __name__ == "__main__":
    main("q4", names, run_verl)

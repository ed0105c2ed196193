"""verl 0.9.1's own advantage and loss functions, actor side; the hook dumps much, in some cases less ("lazy")."""

from world_q_verl import *

names = {}
for s in range(14):
    c = table(s, 0)
    names[f"h_{s:02d}_{c['loss_mode']}_{c['adv_estimator']}"] = c
if __name__ == "__main__":
    main("q3", names, run_verl)

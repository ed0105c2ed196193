"""Produce golden/dumps: dumps of the trainers' and losses' own code, clean and with one bug patched in.

    python trl_grpo.py                                   (trl 1.16.0: GRPOTrainer)
    python peer_losses.py --verl DIR --openrlhf DIR      (unpacked wheels of verl 0.9.1 and OpenRLHF 0.11.2)
    python trl_ppo.py                                    (trl 1.12.0: PPOTrainer, its own environment)
    python produce.py                                    (recount the manifest; the three above do it too)

Each takes --only NAME,NAME and --check, which judges the files that are there and writes nothing.
"""
import writer

if __name__ == "__main__":
    writer.manifest({})

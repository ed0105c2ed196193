#!/usr/bin/env bash
# A start script of verl as it is, with the hook put in by plumbline: the workers get it through PYTHONPATH. γ, λ and the KL penalty
# live in verl's driver, so that the configuration is named, too (verify dump --config reads Hydra's tree and overrides).
#
# Not run in CI: it needs GPUs and a model.
set -euo pipefail
exec plumbline run --config "$0" -- python3 -m verl.trainer.main_ppo \
  algorithm.adv_estimator=grpo \
  data.train_files="${TRAIN:?a parquet file}" \
  data.val_files="${VAL:-$TRAIN}" \
  data.train_batch_size=64 \
  actor_rollout_ref.model.path="${MODEL:?a model}" \
  actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.actor.use_kl_loss=true \
  trainer.total_training_steps=4 \
  "$@"

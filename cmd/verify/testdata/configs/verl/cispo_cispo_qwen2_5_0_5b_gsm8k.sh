set -x

python3 -m verl.trainer.main_ppo \
    actor_rollout_ref.actor.clip_ratio_high=0.2 \
    actor_rollout_ref.actor.clip_ratio_low=10 \
    actor_rollout_ref.actor.entropy_coeff=0 \
    actor_rollout_ref.actor.kl_loss_coef=0.001 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    actor_rollout_ref.actor.optim.lr=1e-06 \
    actor_rollout_ref.actor.policy_loss.loss_mode=cispo \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.rollout.n=5 \
    actor_rollout_ref.rollout.name=vllm \
    algorithm.adv_estimator=grpo \
    algorithm.use_kl_in_reward=False \
    data.max_prompt_length=1024 \
    data.max_response_length=1024 \
    data.train_batch_size=256 \
    trainer.critic_warmup=0 \
    trainer.logger='[console,wandb]' \
    trainer.nnodes=1 \
    trainer.total_epochs=3 \
    data.train_files=$HOME/data/train.parquet "$@"

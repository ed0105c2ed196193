set -x

python3 -m verl.trainer.main_ppo \
    actor_rollout_ref.actor.optim.lr=1e-06 \
    actor_rollout_ref.actor.ppo_mini_batch_size=512 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.rollout.name=vllm \
    algorithm.adv_estimator=gae \
    algorithm.use_kl_in_reward=False \
    critic.optim.lr=1e-05 \
    data.max_prompt_length=4096 \
    data.max_response_length=4096 \
    data.train_batch_size=4096 \
    trainer.critic_warmup=0 \
    trainer.logger='[console,wandb]' \
    trainer.nnodes=1 \
    trainer.total_epochs=15 \
    data.train_files=$HOME/data/train.parquet "$@"

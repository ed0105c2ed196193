set -x
ray stop --force
ray start --head --num-gpus 8

python3 -m openrlhf.cli.train_ppo_ray \
   --actor.adam.lr 1e-06 \
   --actor.eps_clip_low_high 0.2 0.27 \
   --actor.gradient_checkpointing_enable \
   --actor.num_gpus_per_node 8 \
   --actor.num_nodes 1 \
   --algo.advantage.estimator reinforce_baseline \
   --algo.advantage.gamma 1 \
   --algo.advantage.is_correction_enable \
   --algo.advantage.is_correction_threshold 0.5 5 \
   --algo.advantage.is_correction_type icepop \
   --algo.dynamic_filtering_enable \
   --algo.dynamic_filtering_range 0 1 \
   --algo.kl.estimator k2 \
   --algo.kl.init_coef 0.0001 \
   --algo.kl.use_loss \
   --ds.param_dtype bf16 \
   --ds.zero_stage 3 \
   --eval.n_samples_per_prompt 4 \
   --eval.steps 5 \
   --eval.temperature 1 \
   --reward.stop_properly_penalty_coef 0 \
   --rollout.batch_size 512 \
   --rollout.max_new_tokens 8192 \
   --rollout.n_samples_per_prompt 16 \
   --train.batch_size 1024 \
   --train.colocate_all \
   --train.dynamic_batch_enable \
   --train.max_tokens_per_gpu 32768 \
   --train.num_episodes 100 \
   --vllm.num_engines 8 \
   --ckpt.output_dir ${SAVE_PATH}
ray stop

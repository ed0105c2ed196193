set -x
ray stop --force
ray start --head --num-gpus 8

python3 -m openrlhf.cli.train_ppo_ray \
   --actor_learning_rate 5e-07 \
   --actor_num_nodes 1 \
   --critic_learning_rate 9e-06 \
   --critic_num_nodes 1 \
   --enable_vllm_is_correction \
   --init_kl_coef 0.01 \
   --max_epochs 1 \
   --max_samples 100000 \
   --n_samples_per_prompt 1 \
   --normalize_reward \
   --packing_samples \
   --ref_num_nodes 1 \
   --reward_num_nodes 1 \
   --rollout_batch_size 1024 \
   --train_batch_size 128 \
   --use_dynamic_batch \
   --zero_stage 3 \
   --ckpt.output_dir ${SAVE_PATH}
ray stop

set -x
ray stop --force
ray start --head --num-gpus 8

python3 -m openrlhf.cli.train_ppo_ray \
   --actor.adam.lr 5e-07 \
   --actor.eps_clip_low_high 0.2 0.27 \
   --actor.gradient_checkpointing_enable \
   --actor.num_gpus_per_node 8 \
   --actor.num_nodes 1 \
   --algo.advantage.estimator group_norm \
   --algo.advantage.gamma 1 \
   --algo.advantage.is_correction_enable \
   --algo.dynamic_filtering_enable \
   --algo.dynamic_filtering_range 0 1 \
   --algo.kl.estimator k3 \
   --algo.kl.init_coef 0.001 \
   --algo.kl.use_loss \
   --ds.param_dtype bf16 \
   --ds.zero_stage 3 \
   --rollout.batch_size 128 \
   --rollout.micro_batch_size 16 \
   --rollout.n_samples_per_prompt 8 \
   --train.batch_size 128 \
   --train.colocate_all \
   --train.max_epochs 1 \
   --train.micro_batch_size 8 \
   --vllm.num_engines 4 \
   --ckpt.output_dir ${SAVE_PATH}
ray stop

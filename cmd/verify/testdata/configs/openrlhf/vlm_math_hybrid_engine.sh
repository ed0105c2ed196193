set -x
ray stop --force
ray start --head --num-gpus 8

python3 -m openrlhf.cli.train_ppo_ray \
   --actor.adam.lr 2e-06 \
   --actor.freeze_visual_encoder \
   --actor.gradient_checkpointing_enable \
   --actor.num_gpus_per_node 4 \
   --actor.num_nodes 1 \
   --algo.advantage.estimator reinforce_baseline \
   --algo.advantage.gamma 1 \
   --algo.kl.estimator k2 \
   --algo.kl.init_coef 0 \
   --algo.kl.use_loss \
   --ds.param_dtype bf16 \
   --ds.zero_stage 3 \
   --eval.steps -1 \
   --rollout.batch_size 128 \
   --rollout.max_new_tokens 2048 \
   --rollout.micro_batch_size 1 \
   --rollout.n_samples_per_prompt 8 \
   --train.batch_size 1024 \
   --train.colocate_all \
   --train.micro_batch_size 1 \
   --train.num_episodes 100 \
   --vllm.num_engines 4 \
   --ckpt.output_dir ${SAVE_PATH}
ray stop

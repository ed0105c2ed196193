pip install math_verify

accelerate launch \
    --config_file examples/accelerate_configs/deepspeed_zero3.yaml \
    examples/scripts/ppo/ppo_tldr.py \
    --dataset_name trl-lib/tldr \
    --dataset_test_split validation \
    --output_dir ppo \
    --per_device_train_batch_size 16 \
    --gradient_accumulation_steps 4 \
    --total_episodes 1000000 \
    --local_rollout_forward_batch_size 16 \
    --missing_eos_penalty 1 \
    --stop_token eos \
    --eval_strategy steps \
    --eval_steps 100 \
    --sft_model_path sft \
    --reward_model_path reward

pip install math_verify

accelerate launch \
    --config_file examples/accelerate_configs/deepspeed_zero3.yaml \
    examples/scripts/gspo.py \
    --scale_rewards batch \
    --loss_type dapo \
    --beta 0 \
    --top_p 0.99 \
    --top_k 100 \
    --temperature 0.99 \
    --num_generations 8 \
    --num_iterations 1 \
    --per_device_train_batch_size 4 \
    --gradient_accumulation_steps 32 \
    --steps_per_generation 8

pip install math_verify

accelerate launch \
    --config_file examples/accelerate_configs/deepspeed_zero3.yaml \
    examples/scripts/gspo.py \
    --loss_type vespo \
    --use_vllm \
    --vllm_importance_sampling_mode token_truncate \
    --vespo_k_pos 2 \
    --vespo_lambda_pos 3 \
    --vespo_k_neg 3 \
    --vespo_lambda_neg 2

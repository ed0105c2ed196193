package convention

// aggregation are the options of aggregation and of log-probs.
var aggregation = []Option{
	{"agg.kind", EnumType, nil, Any, "how token losses become one number", "2.9, 3.6", []Stage{Aggregate, Gradient}},
	{"agg.denominator", EnumType, nil, Any, "over what tokens or rows are counted", "2.9, 3.6", []Stage{Aggregate, Gradient}},
	{"agg.empty_rows", EnumType, nil, Any, "whether a row without tokens counts as a row", "2.9, 3.6", []Stage{Aggregate, Gradient}},
	{"agg.div_batch", BoolType, nil, Any, "seq_sum_const divides by the number of rows too", "2.9, 3.6, 7", []Stage{Aggregate, Gradient}},
	{"agg.len_eps", NumberType, []string{"0", "1e-8"}, NotNegative, "added to the length of a row by seq_mean_token_mean", "2.9, 3.6", []Stage{Aggregate, Gradient}},
	{"agg.div_ga", BoolType, nil, Any, "the loss is divided by the accumulation steps", "2.9, 3.6", []Stage{Aggregate, Gradient}},
	{"logp.temperature", NumberType, []string{"1", "0.7"}, Positive, "logits are divided by it before the softmax that is scored", "2.11, 3.6", []Stage{LogP}},
	{"logp.temp_eps", NumberType, []string{"0", "1e-7"}, NotNegative, "added to the temperature", "2.11, 3.6: TRL PPO", []Stage{LogP}},
	{"logp.source", EnumType, []string{"raw", "processed"}, Any, "log-probs of the engine are taken before or after temperature, top-p and top-k", "2.11, 3.6", []Stage{LogP, Ratio}},
	{"logp.dtype", EnumType, []string{"fp64", "fp32", "bf16", "fp16"}, Any, "type in which the log-softmax is computed", "2.11, 3.6", []Stage{LogP}},
	{"dropout", EnumType, []string{"off", "on"}, Any, "in the passes with gradient; on, the first ratio is not 1", "2.11, 3.6", []Stage{LogP}},
}

// afterwards are the options of what a dump's pipeline does not reach: the optimiser, adapters, int8 bases, projection.
var afterwards = []Option{
	{"optim.epochs", NumberType, []string{"1", "2", "4"}, Positive, "passes over a rollout batch", "2.14, 4.1", nil},
	{"optim.kind", EnumType, []string{"adam", "adamw", "adam_tf1", "sgd", "adam8bit"}, Any, "adam_tf1: eps outside the bias correction; adam8bit: bitsandbytes, 8-bit moments", "2.12, 3.6, 4.1", nil},
	{"optim.lr", NumberType, []string{"1e-6", "2e-6", "3e-6", "3e-5"}, NotNegative, "learning rate", "2.14, 4.1", nil},
	{"optim.schedule", EnumType, []string{"constant", "linear", "cosine", "cosine_with_min_lr"}, Any, "course of the learning rate; linear ends at 0", "2.12, 4.1", nil},
	{"optim.eps", NumberType, []string{"1e-5", "1e-8"}, NotNegative, "eps of Adam", "2.12, 3.6", nil},
	{"optim.clip_norm", OrNoneType, []string{"0.5", "1", "none"}, Positive, "bound of the global gradient norm", "2.12, 3.6", nil},
	{"optim.masters", EnumType, []string{"fp32", "bf16"}, Any, "type of the weights that the optimiser updates", "3.6", nil},
	{"lora.scaling", EnumType, []string{"alpha_over_r", "alpha_over_sqrt_r"}, Any, "factor of B·A; the second is rsLoRA", "2.13, 3.6", nil},
	{"lora.bias_merge", EnumType, []string{"scaled", "unscaled"}, Any, "lora_bias is merged times the scaling, or as it is (PEFT's 8-bit path)", "2.13, 3.6", nil},
	{"int8.const", EnumType, []string{"exact", "dequant", "cuda", "torch_default"}, Any, "1/127 and 1/127², 7.874015718698502e-3, 6.200012e-05, 6.200124e-05", "2.13, 3.6", nil},
}

// optimisers are the numbers of an optimiser that the tables of some systems do not name; see [optionIndex].
var optimisers = []Option{
	{"optim.beta1", NumberType, []string{"0.9"}, Unit, "decay of Adam's first moment, momentum of SGD", "torch.optim.AdamW@2.15.0 betas", nil},
	{"optim.beta2", NumberType, []string{"0.95", "0.999"}, Unit, "decay of Adam's second moment", "torch.optim.AdamW@2.15.0 betas", nil},
	{"optim.weight_decay", NumberType, []string{"0", "0.01"}, NotNegative, "decay of the weights; in adam and sgd it is added to the gradient", "torch.optim.AdamW@2.15.0 weight_decay", nil},
	{"optim.no_decay", EnumType, []string{"none", "biases_and_norms"}, Any, "tensors that the decay leaves out", "transformers 5.23 get_decay_parameter_names; OpenRLHF 0.11.2 get_optimizer_grouped_parameters", nil},
}

// projections are the options of projected gradients, which one framework has; see [optionIndex].
var projections = []Option{
	{"proj.against", EnumType, []string{"original", "updated"}, Any, "PCGrad: projected against the other gradients as they were, or as already projected", "3.6", nil},
	{"proj.target", EnumType, []string{"grad", "update"}, Any, "what is projected: the gradient, or the optimiser's update", "3.6, 4.3", nil},
	{"proj.passes", ChoiceType, []string{"1", "2"}, Any, "how often g − Q(Qᵀg) is applied", "3.6, 4.3", nil},
}

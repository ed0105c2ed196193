package fault

// signFaults are what checks that assert, and compare nothing, may find: their names, causes and fixes.
var signFaults = []*Hypothesis{
	sign("GRADIENT-NAN", "a gradient is not finite where its inputs are", "exp overflows before it is clamped: 0·∞", "clamp the log-ratio before exp", "P099", "P098", "P061"),
	sign("ADV-NAN", "an advantage is not finite", "the deviation of one sample, or of none", "use groups of two or more", "H7e", "P091", "P132"),
	sign("NAN-OUTSIDE", "a number that is not finite outside the mask makes the loss NaN", "the mask is multiplied, not selected with: 0·NaN", "select with the mask (torch.where)", "P061", "P100"),
	sign("NAN-EMPTY-ROW", "a row without tokens makes the loss 0/0", "the row's mean divides by its number of tokens", "leave empty rows out, or clamp the denominator", "P132"),
	sign("LOGP-FIRST-TOKEN", "the first token's log-prob is off where the prompt is short", "prompts padded on the right", "pad prompts on the left", "H13c"),
	sign("OLD-OTHER-PASS", "the two passes of the first update differ", "dropout, other kernels or padding in one of them", "evaluation mode in both passes", "H7a", "P038", "P073", "P084", "P160", "P161", "P209"),
	sign("REF-NOT-POLICY", "at the first step the reference is another model than the policy", "another checkpoint, or the adapter is on in one of them", "make the reference of the policy before training", "P018", "P039"),
	sign("REF-IS-POLICY", "the reference is the policy being trained: KL is 0 in every update", "the adapter is on in the reference's pass, or both names hold one module", "disable the adapter for the reference, or copy and freeze the model", "P018", "P039"),
	sign("ROWS-SWAPPED", "log-probs of a row belong to another row", "one tensor was filtered, sorted or shuffled and another was not", "permute all tensors of a batch together", "P023", "P077"),
	sign("GEN-UNADAPTED", "the engine samples from the weights before training", "the sync sends the base without the adapter, or was rolled back", "send the merged weights after every update, and compare logp_gen with logp_old", "P013", "P024", "P085", "P134", "P168"),
	sign("GEN-RAW", "the engine reports log-probs before the temperature", "logprobs_mode raw", "ask the engine for processed log-probs, or divide by the temperature", "P025", "P121", "P185", "P188"),
	sign("GEN-TEMPERATURE-TWICE", "the temperature is missing on the trainer's side, or applied twice by the engine", "one side divides the logits and the other does not", "divide by the sampling temperature once on both sides", "P015", "P066", "P092", "P121"),
	sign("GEN-TRUNCATED", "the engine renormalises over the tokens that top-p or top-k kept", "truncated sampling", "sample with top_p=1 and top_k off, or correct by the kept mass", "P044", "P052"),
	sign("GEN-OTHER-TOKEN", "the engine's log-prob is that of another token than the sampled one", "the first entry of a dictionary is read", "look the sampled id up", "P119", "P126"),
	sign("GEN-ZERO", "missing engine log-probs are filled with 0", "a placeholder", "leave the tensor out where it is not known", "P120", "P174"),
	sign("LOGP-OLD-ZERO", "old log-probs are 0", "a placeholder was never filled", "fill in the log-probs of the rollout", "H1"),
	sign("LOGP-NEW-ZERO", "the policy's log-probs are 0", "a broken gather", "gather along the vocabulary", "B2"),
	sign("LOGP-NAN", "a log-prob is not finite", "an overflow in the model", "look at the logits of that token", "D10", "P147"),
	sign("REF-ZERO", "reference log-probs are 0", "the reference forward was skipped", "run the reference", "P116"),
	sign("MASK-NO-EOS", "the mask leaves out EOS", "ids ≠ pad where pad is EOS", "let the mask run up to and including the first EOS", "H13f", "P033", "P054"),
	sign("MASK-PAST-EOS", "the mask runs past EOS", "an end index of one too many", "end the mask with the first EOS", "P190"),
	sign("MASK-SHIFT", "the mask is shifted against the tokens", "one slice differs from the other", "cut the mask by the slice of the tokens", "P004", "P068"),
	sign("MASK-EMPTY", "no token is marked", "the mask was never filled", "mark the tokens that the policy sampled", "B2", "B4"),
	sign("IDS-RETOKENISED", "the ids trained on are not those sampled", "text was decoded and tokenised again", "hand on the ids", "P001", "P028", "P088"),
	sign("PROMPT-TRUNCATED", "the prompt's length is not that of its mask", "the trainer cut the prompt and the engine did not", "cut before the engine sees it", "P019"),
	sign("ROWS-REPEATED", "half of a group are copies of the other half", "repeat is applied twice", "repeat once", "P065"),
	sign("GROUP-IDENTICAL", "all completions of a group are the same", "the sampler has a fixed seed", "give every sample its own seed", "P064"),
	sign("SCORES-CONSTANT", "all scores are the same, so that nothing is learned", "the judge does not tell the completions apart", "look at the judge", "B1", "B4", "P057"),
}

func sign(id, title, cause, fix string, rows ...string) *Hypothesis {
	return &Hypothesis{ID: id, Rows: rows, Title: title, Cause: cause, Fix: fix}
}

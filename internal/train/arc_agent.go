package train

import (
	"plumbline/internal/dataset"
	"plumbline/reference/ad"
)

// ArcShape are the sizes of an [ArcAgent] that its trainer draws numbers for.
type ArcShape struct{ Prompt, Control, Features int }

// ArcAgent solves grids: a text encoder makes a prompt of a sentence, an agent predicts a grid from a grid and the prompt, and a
// policy refines the prompt. There is the one of the reference: the trainer differentiates its own loss on the agent's tape. Of Params,
// qwen.transformer. is the encoder, qwen.proj its projection, agent. the solver, policy_rl. the policy.
type ArcAgent interface {
	Model
	Shape() ArcShape
	// Encode returns the tokens of a sentence.
	Encode(sentence string) []int
	// On puts the agent on a tape, with gradients or without.
	On(t *ad.Tape, grad bool) ArcNet
}

// ArcNet is an [ArcAgent] on a tape.
type ArcNet interface {
	// PromptOf returns the prompt [P] of the tokens of a sentence.
	PromptOf(ids []int) *ad.Var
	// Predict returns the logits [T, H, W, 10] of T steps for a grid under a prompt.
	Predict(g dataset.Grid, prompt *ad.Var) *ad.Var
	// Refine changes a prompt, given a control vector, features and a draw from the standard normal distribution.
	Refine(prompt, control, features, noise *ad.Var) ArcRefinement
	// Evaluate returns the log-density of the change that u made at a state, the value of the state, and the entropy of u.
	Evaluate(state, u *ad.Var) (logp, value, entropy *ad.Var)
	// Curiosity returns how badly the next state was predicted from a state and u.
	Curiosity(state, u, next *ad.Var) *ad.Var
	// Resize returns logits for H×W cells, bilinearly.
	Resize(logits *ad.Var, h, w int) *ad.Var
	// Grid returns the most likely colours of the last step, for h×w cells by the nearest.
	Grid(logits *ad.Var, h, w int) dataset.Grid
	// Collect adds the gradients on the tape to those of the parameters.
	Collect()
}

// ArcRefinement is one step of the policy that refines prompts.
type ArcRefinement struct {
	State  *ad.Var // x = [prompt, control, features]
	U      *ad.Var // μ(x) + σ·noise, [P]
	Alpha  *ad.Var // in (0, 1)
	Prompt *ad.Var // prompt + α·0.2·tanh(u), [P]
	Value  *ad.Var // V(x)
}

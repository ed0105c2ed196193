package stage_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// verl's bypass mode rejects in the loss (compute_policy_loss_bypass_mode): its batch_num_tokens counts the tokens before, a step may have
// none left, and what the mask of the batch is averaged over by is not what the loss was.
func TestRejectionOfVerl(t *testing.T) {
	declared := func(text string) *convention.Set {
		var tree map[string]any
		require.NoError(t, json.Unmarshal([]byte(text), &tree))
		options, _, err := convention.OptionsOf(tree)
		require.NoError(t, err)
		d, err := convention.Declare("verl grpo", "0.9.1", options, "")
		require.NoError(t, err)
		return d.Set
	}
	both := declared(`{"framework": "verl", "algorithm": {"rollout_correction": {"bypass_mode": true, "rollout_rs": "seq_mean_k1"}}}`)
	decoupled := declared(`{"framework": "verl", "algorithm": {"rollout_correction": {"bypass_mode": false, "rollout_rs": "seq_mean_k1"}}}`)
	neither := declared(`{"framework": "verl", "algorithm": {"rollout_correction": {"bypass_mode": true, "rollout_rs": null}}}`)
	require.NotEmpty(t, both.Beyond(convention.Scalars))
	require.Empty(t, decoupled.Beyond(convention.Scalars))
	require.Empty(t, neither.Beyond(convention.Aggregate))

	tr := newTrainer(33)
	b := tr.b
	tr.perFile("loss", make([]float64, len(b.Files)))
	attention := make([]float64, b.Rows*(b.Cols+1))
	var before float64
	for i, m := range b.Mask {
		if attention[i/b.Cols*(b.Cols+1)] = 1; m {
			attention[i/b.Cols*(b.Cols+1)+1+i%b.Cols] = 1
			before++
		}
	}
	b.Tensors["attention_mask"] = &dump.Tensor{Name: "attention_mask", Width: b.Cols + 1, Shape: []int{b.Rows, b.Cols + 1}, Data: attention, Type: format.I64}
	for i := range b.Cols {
		b.Mask[i] = false
	}
	require.Equal(t, check.Pass, judgedRules(t, "aggregate/num_items", b, both.WithFact("num_items_in_batch", before)).Verdict)
	require.Equal(t, check.Undetermined, judgedRules(t, "aggregate/num_items", b, both.WithFact("num_items_in_batch", before+1)).Verdict)
	for _, set := range []*convention.Set{decoupled, neither} {
		require.Equal(t, check.Fail, judgedRules(t, "aggregate/num_items", b, set.WithFact("num_items_in_batch", before)).Verdict)
	}
	shorter := func(n int) bool { // the first row, with a response of n tokens, is not in the mask
		for i := range b.Cols {
			attention[1+i] = 0
			if i < n {
				attention[1+i] = 1
			}
		}
		return stage.Rejected(b)
	}
	require.True(t, shorter(1))
	require.False(t, shorter(0), "no response")
	require.False(t, shorter(b.Cols), "cut off by its length")
	clear(b.Mask)
	require.Equal(t, check.Warn, judgedRules(t, "masks/lengths", b, both).Verdict)
	require.Equal(t, check.Warn, judgedRules(t, "masks/lengths", b, decoupled).Verdict)
	require.Equal(t, check.Fail, judgedRules(t, "masks/lengths", b, neither).Verdict)
}

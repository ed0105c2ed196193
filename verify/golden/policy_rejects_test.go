package golden_test

import (
	"testing"

	"plumbline/reference/rl"

	"github.com/stretchr/testify/require"
)

// TestPolicyLossRejects: for each framework the comparison tells its options from a neighbour's.
func TestPolicyLossRejects(t *testing.T) {
	caught := map[string]int{}
	for _, e := range load(t, "policy_loss") {
		var c policyCase
		var faults map[string]func(o *rl.PolicyOptions)
		switch {
		case e.Case != "contiguous":
			continue
		case e.Function == "compute_policy_loss_vanilla" && e.str(t, "loss_agg_mode") == "seq-mean-token-mean":
			c = verlPolicy(t, e)
			faults = map[string]func(o *rl.PolicyOptions){
				"TRL's lengths":      func(o *rl.PolicyOptions) { o.Agg.LenEps = 0 },
				"TRL's upper bound":  func(o *rl.PolicyOptions) { o.Clip.High = 0.28 },
				"mean over tokens":   func(o *rl.PolicyOptions) { o.Agg.Kind = rl.AggToken },
				"ratio of sequences": func(o *rl.PolicyOptions) { o.Ratio.Level = rl.RatioSeqMean },
			}
		case e.Function == "PolicyLoss" && e.str(t, "policy_loss_type") == "gspo":
			c = openrlhfPolicy(t, e)
			faults = map[string]func(o *rl.PolicyOptions){
				"verl's gradient per token": func(o *rl.PolicyOptions) { o.Ratio.PerToken = true },
				"sum over the sequence":     func(o *rl.PolicyOptions) { o.Ratio.Level, o.Kind = rl.RatioSeqSum, rl.LossPPO },
			}
		case e.Function == "GRPOTrainer._compute_loss" && e.Options["use_bias_correction_kl"] == true:
			c = trlPolicy(t, e)
			faults = map[string]func(o *rl.PolicyOptions){
				"k3 without the ratio": func(o *rl.PolicyOptions) { o.KL.Grad = rl.KLNaive },
				"ratio detached":       func(o *rl.PolicyOptions) { o.KL.Grad = rl.KLScoreFunction },
				"tokens at hand":       func(o *rl.PolicyOptions) { o.Agg.Denominator = rl.AggMicro },
			}
		case e.Function == "GRPOTrainer._compute_loss" && e.str(t, "loss_type") == "sapo":
			c = trlPolicy(t, e)
			faults = map[string]func(o *rl.PolicyOptions){"Liger's temperatures": func(o *rl.PolicyOptions) { o.TauNeg = 1.05 }}
		case e.Function == "GRPOTrainer._compute_loss" && e.str(t, "loss_type") == "cispo" && option(t, e, "epsilon_high", 0) < 1:
			c = trlPolicy(t, e)
			faults = map[string]func(o *rl.PolicyOptions){"1 + the cap": func(o *rl.PolicyOptions) { o.Clip.HighAbsolute = false }}
		}
		for what, fault := range faults {
			o := c.opt
			fault(&o)
			var r rl.PolicyResult
			require.NoError(t, rl.Policy(&r, c.batch, o))
			same := near([]float64{r.Loss}, e.output(t, "loss").Data, exact) == nil && near(r.DLogp, e.output(t, "dloss_dlogp").Data, exact) == nil
			require.False(t, same, "%s: %s", e.name(), what)
			caught[e.Peer]++
		}
	}
	require.Greater(t, caught["verl"], 4)
	require.Greater(t, caught["openrlhf"], 1)
	require.Greater(t, caught["trl"], 4)
}

package trainer

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/verify/convention"
)

// upstream are the outputs in the order in which they come about.
var upstream = []string{"response_ids", "logp_new", "logp_old", "logp_gen", "logp_ref", "entropy", "kl", "scores", "rewards_per_func",
	"token_rewards", "advantages", "values", "returns", "is_weights", "token_loss", "loss", "dlogp", "dvalues"}

// A plant changes nothing that comes before its outputs: the bug sits there.
func TestPlantsAreLocal(t *testing.T) {
	all := []map[string]*convention.Set{sets(t, 0), sets(t, 1)}
	for i, p := range Plants {
		if i%cases.Every != 0 {
			continue
		}
		first := len(upstream)
		for _, o := range p.Outputs {
			if i := slices.Index(upstream, o); i >= 0 {
				first = min(first, i)
			}
			if i := slices.Index([]string{"pg_loss", "kl_loss", "value_loss", "entropy_loss"}, o); i >= 0 {
				first = min(first, slices.Index(upstream, "loss"))
			}
		}
		if p.Outputs[0] == "response_mask" || p.Outputs[0] == "attention_mask" || p.Outputs[0] == "input_ids" || p.Outputs[0] == "group_id" {
			continue // nothing comes before
		}
		shown := 0
		for seed := range uint64(2) {
			for _, name := range slices.Sorted(maps.Keys(all[seed])) {
				set := all[seed][name]
				if !p.Applies(set) || shown > 1 {
					continue
				}
				c := Config{Set: set, Seed: seed, Files: 2, Ranks: 1 + int(seed), Holes: true, Rewards: 2, Logits: true, FirstStep: p.ID == "OLD-OTHER-PASS"}.withDefaults()
				healthy, _ := train(c, "", p.ID) // on the data on which the bug shows
				b, _ := train(c, p.ID, p.ID)
				if !differs(healthy, b, p.Outputs, told[c.DType]) {
					continue
				}
				shown++
				for _, name := range upstream[:first] {
					if name == "token_rewards" && set.Value("adv.kind").String() == "group" {
						continue // OpenRLHF makes them of the advantages of the group
					}
					if name == "kl" && set.Value("kl.grad").String() == "is_corrected" {
						continue // holds the ratio of the loss
					}
					x, y := healthy.Tensors[name], b.Tensors[name]
					if x != nil && y != nil {
						require.Truef(t, slices.EqualFunc(x.Data, y.Data, func(a, b float64) bool { return a == b || a != a && b != b }), "%s changes %s", p.ID, name)
					}
				}
			}
		}
	}
}

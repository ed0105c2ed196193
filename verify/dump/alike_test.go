package dump_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/dump"
)

// inverted writes the token losses and their gradients of a PPO policy loss with the ratio upside down; the gradient of a token is that of its loss.
func inverted(b *dumpfile.Batch) {
	lp, old, adv, loss, d := b.Token("logp_new"), b.Token("logp_old"), b.Token("advantages"), b.Token("token_loss"), b.Token("dlogp")
	n := 0.
	cells(b, func(int, int, int) { n++ })
	cells(b, func(i, _, _ int) {
		r := math.Exp(old[i] - lp[i])
		clipped := min(max(r, 0.8), 1.2)
		loss[i], d[i] = single(max(-adv[i]*r, -adv[i]*clipped)), 0
		if -adv[i]*r >= -adv[i]*clipped {
			d[i] = single(adv[i] * r / n)
		}
	})
}

// One bug of a loss that is found in its gradient by another name is one finding, and a second bug beside it is another.
func TestBugsByTwoNames(t *testing.T) {
	for _, second := range []bool{false, true} {
		run, err := dumpfile.Open(context.Background(), []string{verlPPO})
		require.NoError(t, err)
		var steps dump.Batches
		for _, step := range run.Steps() {
			b, err := run.Batch(context.Background(), step)
			require.NoError(t, err)
			inverted(b)
			if second {
				v := b.PerFile("value_loss")
				for f := range v {
					v[f] = single(v[f] * 2)
				}
			}
			steps = append(steps, b)
		}
		r, err := dump.Judge(context.Background(), steps, dump.Options{Profile: "verl-ppo@0.9", Brief: true})
		require.NoError(t, err)
		want := map[string][]string{"RATIO-INVERTED": {"token_loss/policy", "aggregate/pg_loss", "aggregate/loss", "gradient/dlogp"}}
		if second {
			want["FACTOR"] = []string{"aggregate/value_loss", "scalars/value_loss"} // what was logged is the mean of the right one
		}
		for _, res := range r.Results {
			if res.Check == "token_loss/policy" { // alone it would have the one name only
				require.Contains(t, res.Repeat, "token_loss/policy,gradient/dlogp")
			}
		}
		found := map[string][]string{}
		for _, f := range r.Brief.Findings {
			found[f.Name] = f.Seen
		}
		require.Equal(t, want, found)
	}
}

package dump_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/dump"
	plant "plumbline/verify/plant/dump"
	"plumbline/verify/plant/trainer"
)

// resolves is what the checks of a row of 131,072 tokens resolve, relative to their scale: what is computed token by token as
// much as in a short row, 2u to 20u with u = 2⁻²⁴; recursions with γλ < 0.95 forget their errors after twenty tokens; sums of n
// terms in any blocked order lose what stage's bound of a sum says, 2.6e-4.
var resolves = []struct {
	check string
	most  float64
}{
	{"kl/token", 1e-6}, {"reward/", 1e-6}, {"ratio/is_weights", 1e-6}, {"token_loss/", 1e-6}, {"advantage/", 5e-6}, {"gae/", 5e-4},
	{"gradient/", 2e-5}, {"aggregate/", 3e-4}, {"scalars/", 3e-4},
}

// TestLongRows judges two responses of up to 131,072 tokens, by default of 16,384: every check keeps its resolution, and none drowns in cells whose
// bound is too wide to tell. What cannot be had in float32 is not asked for: a sum over γλ = 1, the exponential of a sum.
func TestLongRows(t *testing.T) {
	if testing.Short() {
		t.Skip("131,072 tokens")
	}
	cols := 1 << 14
	if cases.All {
		cols = 1 << 17
	}
	for i, c := range []struct {
		profile string
		seed    uint64
		options map[string]string
	}{
		{"trl-grpo@1.16", 1, map[string]string{"tis.level": "token", "tis.rule": "truncate_upper", "tis.low": "0", "tis.high": "2", "adv.multi": "sum_then_normalize"}},
		{"verl-ppo@0.9", 2, map[string]string{"gae.gamma": "0.99", "gae.lambda": "0.95", "tis.level": "none"}},
	} {
		if i%cases.Every != 0 {
			continue
		}
		t.Run(c.profile, func(t *testing.T) {
			p, _, err := convention.Lookup(c.profile)
			require.NoError(t, err)
			set := trainer.Complete(p, rand.New(rand.NewPCG(c.seed, 80)))
			for name, text := range c.options {
				v, err := convention.Parse(name, text)
				require.NoError(t, err)
				set = set.With(name, v, "run")
			}
			b, set := trainer.Healthy(trainer.Config{Set: set, Rows: 2, Group: 2, Cols: cols, Seed: c.seed})
			require.True(t, b.Mask[cols-1] || b.Mask[2*cols-1], "a row as long as the grid")
			dir := t.TempDir()
			writeFiles(t, dir, plant.Declared(b, set))
			r := judgeFiles(t, dump.Options{}, dir)
			require.Empty(t, bad(r), describe(bad(r)))
			compared := 0
			for _, res := range r.Results {
				if res.Metric == "" {
					continue
				}
				want := check.Pass // at most 5 % of the cells undetermined
				if strings.HasPrefix(res.Check, "scalars/clip_") && !moved(b) {
					want = check.Untested // all ratios are 1: there is nothing to clip
				}
				require.Equal(t, want.String(), res.Verdict.String(), "%s: %s", res.Check, res.Reason)
				compared++
				for _, limit := range resolves {
					if strings.HasPrefix(res.Check, limit.check) {
						require.LessOrEqual(t, res.Resolution, limit.most, res.Check)
						t.Logf("%-32s resolves %.2g of %d numbers", res.Check, res.Resolution, res.Compared)
						break
					}
				}
			}
			require.Greater(t, compared, 8)
		})
	}
}

// moved reports whether a ratio of the batch is not 1.
func moved(b *dumpfile.Batch) bool {
	lp, old := b.Token("logp_new"), b.Token("logp_old")
	for i, m := range b.Mask {
		if m && lp[i] != old[i] {
			return true
		}
	}
	return false
}

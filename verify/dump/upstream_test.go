package dump_test

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// rewarded writes the advantages and returns of a run of verl from rewards that another program makes of score and KL, and takes the rewards
// and the estimates of KL out of the dump.
func rewarded(b *dumpfile.Batch, kl func(old, ref, lp []float64, i int) float64, place func(score float64, first, last, col int) float64) {
	score, old, ref, lp, r := b.Row("scores"), b.Token("logp_old"), b.Token("logp_ref"), b.Token("logp_new"), b.Token("token_rewards")
	first, last := ends(b)
	cells(b, func(i, row, col int) {
		r[i] = single(place(score[row], first[row], last[row], col) - kl(old, ref, lp, i))
	})
	returns(b, 0.99, 0.99*0.95)
	ret, v, adv := b.Token("returns"), b.Token("values"), b.Token("advantages")
	var n, mean, square float64
	cells(b, func(i, _, _ int) { n, mean = n+1, mean+ret[i]-v[i] })
	mean /= n
	cells(b, func(i, _, _ int) { square += (ret[i] - v[i] - mean) * (ret[i] - v[i] - mean) })
	cells(b, func(i, _, _ int) { adv[i] = single((ret[i] - v[i] - mean) / math.Sqrt(square/(n-1)+1e-8)) })
	delete(b.Tensors, "token_rewards")
	delete(b.Tensors, "kl")
}

func atLast(score float64, _, last, col int) float64 {
	if col == last {
		return score
	}
	return 0
}

// A bug of the rewards is named where neither they nor the KL were dumped: what is made of them has it.
func TestBugsOfRewardsThatWereNotDumped(t *testing.T) {
	k1 := func(old, ref, _ []float64, i int) float64 { return 0.05 * (old[i] - ref[i]) }
	for _, c := range []struct {
		name, fault string
		kl          func(old, ref, lp []float64, i int) float64
		place       func(score float64, first, last, col int) float64
	}{
		{"right", "", k1, atLast},
		{"no KL", "KL-ABSENT", func(_, _, _ []float64, _ int) float64 { return 0 }, atLast},
		{"KL twice", "KL-TWICE", func(old, ref, lp []float64, i int) float64 { return 2 * k1(old, ref, lp, i) }, atLast},
		{"the sign", "KL-REVERSED", func(old, ref, lp []float64, i int) float64 { return -k1(old, ref, lp, i) }, atLast},
		{"β missing", "BETA-MISSING", func(old, ref, lp []float64, i int) float64 { return 20 * k1(old, ref, lp, i) }, atLast},
		{"another β", "KL-BETA", func(old, ref, lp []float64, i int) float64 { return 0.3 * k1(old, ref, lp, i) }, atLast},
		{"k3", "KL-KIND", func(old, ref, _ []float64, i int) float64 {
			return 0.05 * (math.Expm1(ref[i]-old[i]) - (ref[i] - old[i]))
		}, atLast},
		{"|x|", "KL-FORMULA", func(old, ref, _ []float64, i int) float64 { return 0.05 * math.Abs(ref[i]-old[i]) }, atLast},
		{"a bound on x", "KL-CUT-OFF", func(old, ref, _ []float64, i int) float64 { return 0.05 * max(min(old[i]-ref[i], 0.1), -0.1) }, atLast},
		{"the reference of another row", "KL-REFERENCE-ROWS", func(old, ref, _ []float64, i int) float64 {
			n := len(ref) / 2 // rows are rolled in each of two files
			return 0.05 * (old[i] - ref[i/n*n+(i%n+n-14)%n])
		}, atLast},
		{"no reference", "KL-REFERENCE-ZERO", func(old, _, _ []float64, i int) float64 { return 0.05 * old[i] }, atLast},
		{"the new pass", "KL-OF-NEW", func(_, ref, lp []float64, i int) float64 { return 0.05 * (lp[i] - ref[i]) }, atLast},
		{"the score is early", "SCORE-EARLY", k1, func(score float64, _, last, col int) float64 { return atLast(score, 0, last-1, col) }},
		{"no score", "SCORE-LOST", k1, func(float64, int, int, int) float64 { return 0 }},
		{"the score on the first token", "REWARD-PLACE", k1, func(score float64, first, _, col int) float64 { return atLast(score, 0, first, col) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			run, err := dumpfile.Open(context.Background(), []string{verlPPO})
			require.NoError(t, err)
			var steps dump.Batches
			for _, step := range run.Steps() {
				b, err := run.Batch(context.Background(), step)
				require.NoError(t, err)
				rewarded(b, c.kl, c.place)
				steps = append(steps, b)
			}
			r, err := dump.Judge(context.Background(), steps, dump.Options{Profile: "verl-ppo@0.9", Selection: check.Selection{Select: []string{"gae/*", "reward/*", "kl/*"}}})
			require.NoError(t, err)
			at := slices.IndexFunc(r.Results, func(r check.Result) bool { return r.Verdict == check.Fail || r.Verdict == check.Convention })
			if c.fault == "" {
				require.Negative(t, at, describe(bad(r)))
				return
			}
			require.GreaterOrEqual(t, at, 0)
			res := r.Results[at]
			require.NotEmpty(t, res.Explanations, res.Reason)
			for _, res := range bad(r) {
				if len(res.Explanations) > 0 {
					t.Log(res.Check, res.Verdict, res.Explanations[0].Fault, res.Explanations[0].Title, res.Class)
				} else {
					t.Log(res.Check, res.Verdict, res.Reason)
				}
			}
			require.Equal(t, c.fault, res.Explanations[0].Fault, res.Explanations[0].Title)
		})
	}
}

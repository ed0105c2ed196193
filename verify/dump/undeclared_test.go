package dump_test

import (
	"context"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"slices"
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

// seldom leaves out two of three tests that search all forms of a run, by their names, unless all cases are asked for.
func seldom(t *testing.T) {
	if testing.Short() {
		t.Skip("a search takes seconds")
	}
	if crc32.ChecksumIEEE([]byte(t.Name()))%cases.Every != 0 {
		t.Skipf("a search takes seconds: one test in %d by default, all with the tag slow", cases.Every)
	}
}

// silent judges a run of TRL whose files declare nothing, with the outputs that change writes.
func silent(t *testing.T, change func(b *dumpfile.Batch), ids ...string) []check.Result {
	return silentIn(t, trlGRPO, change, ids...).Results
}

// silentIn is silent of any run, with the whole report.
func silentIn(t *testing.T, path string, change func(b *dumpfile.Batch), ids ...string) *dump.Report {
	seldom(t)
	run, err := dumpfile.Open(context.Background(), []string{path})
	require.NoError(t, err)
	var steps dump.Batches
	for _, step := range run.Steps() {
		b, err := run.Batch(context.Background(), step)
		require.NoError(t, err)
		b.Meta.Options, b.Meta.Framework, b.Meta.Version, b.Meta.Algorithm, b.Meta.Profile = nil, "", "", "", ""
		change(b)
		steps = append(steps, b)
	}
	r, err := dump.Judge(context.Background(), steps, dump.Options{Profile: dump.NoProfile, Selection: check.Selection{Select: ids}})
	require.NoError(t, err)
	return r
}

// A coefficient that no profile has, of a run that declares nothing, is what the run uses: no convention is broken.
func TestNumbersThatNobodyDeclaresAreFound(t *testing.T) {
	for _, said := range []bool{true, false} { // whether the files say that the losses hold the KL term
		for _, estimates := range []bool{true, false} {
			if !(said && estimates) && !cases.All {
				continue
			}
			passed := false
			for _, r := range silent(t, func(b *dumpfile.Batch) {
				lp, old, adv, kl, loss := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages"), b.Token("kl"), b.Token("token_loss")
				cells(b, func(i, row, _ int) {
					ratio := math.Exp(lp[i] - old[i])
					clipped := min(max(ratio, 1-0.17), 1+0.23)
					loss[i] = single(max(-adv[row]*ratio, -adv[row]*clipped) + 0.0317*kl[i])
				})
				if !said {
					b.Meta.TokenLossIncludesKL = nil
				}
				if !estimates {
					delete(b.Tensors, "kl")
				}
			}, "token_loss/policy") {
				require.NotContains(t, []check.Verdict{check.Fail, check.Convention}, r.Verdict, "%s: %s", r.Check, r.Reason)
				passed = passed || r.Check == "token_loss/policy" && r.Verdict == check.Pass
			}
			require.True(t, passed || !estimates, "said %v", said)
		}
	}
}

// Nothing declared, a KL term that is subtracted is no reading of the losses, and neither is the smaller of the two terms of the clip.
func TestLossesThatNoConfigurationGives(t *testing.T) {
	for _, c := range []struct {
		bug       string
		low, high float64
		of        func(plain, clipped, kl float64) float64
	}{
		{"KL-SIGN", 0.2, 0.2, func(plain, clipped, kl float64) float64 { return max(plain, clipped) - 0.0317*kl }},
		{"CLIP-MIN-MAX", 0.17, 0.23, func(plain, clipped, _ float64) float64 { return min(plain, clipped) }},
	} {
		for _, r := range silent(t, func(b *dumpfile.Batch) {
			lp, old, adv, kl, loss := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages"), b.Token("kl"), b.Token("token_loss")
			cells(b, func(i, row, _ int) {
				ratio := math.Exp(lp[i] - old[i])
				loss[i] = single(c.of(-adv[row]*ratio, -adv[row]*min(max(ratio, 1-c.low), 1+c.high), kl[i]))
			})
			b.Meta.TokenLossIncludesKL = nil
		}, "token_loss/policy") {
			if r.Check == "token_loss/policy" {
				require.Equal(t, check.Fail, r.Verdict, "%s: %s", c.bug, r.Reason)
				require.Equal(t, c.bug, r.Explanations[0].Fault)
			}
		}
	}
}

// Token losses that no formula gives: without a declaration, a number may be another one, and nothing is said to be wrong.
func TestWhatNothingExplainsIsUndecidedWithoutADeclaration(t *testing.T) {
	seen := false
	for _, r := range silent(t, func(b *dumpfile.Batch) {
		loss := b.Token("token_loss")
		cells(b, func(i, row, col int) { loss[i] = single(loss[i] + math.Sin(float64(7*row*row+3*col*col))) })
	}, "token_loss/policy") {
		if r.Check == "token_loss/policy" {
			seen = true
			require.Equal(t, check.Undetermined, r.Verdict, r.Reason)
			require.Contains(t, r.Reason, "nobody declares")
		}
	}
	require.True(t, seen)
}

// A bound and what it counts from are right only together: the gradient is searched from what its losses leave open, not apart.
func TestGradientsAreThoseOfTheirLosses(t *testing.T) {
	passed := map[string]bool{}
	for _, r := range silent(t, func(b *dumpfile.Batch) {
		lp, old, adv, loss, g := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages"), b.Token("token_loss"), b.Token("dlogp")
		n := 0.0
		cells(b, func(int, int, int) { n++ })
		total := 0.0
		cells(b, func(i, row, _ int) {
			weight := min(math.Exp(lp[i]-old[i]), 1.0173)
			loss[i] = single(-adv[row] * lp[i] * weight)
			g[i] = single(-adv[row] * weight / n)
			total += loss[i]
		})
		delete(b.Tensors, "kl")
		delete(b.Tensors, "logp_ref")
		b.Tensors["loss"].Data[0] = single(total / n)
	}, "token_loss/policy", "aggregate/loss", "gradient/dlogp") {
		require.NotContains(t, []check.Verdict{check.Fail, check.Convention}, r.Verdict, "%s: %s", r.Check, r.Reason)
		passed[r.Check] = r.Verdict == check.Pass
	}
	require.True(t, passed["token_loss/policy"])
	require.True(t, passed["gradient/dlogp"])
}

// Of a rejection, which nobody declares, all responses of a step may be; a mask that is empty in every step was never filled.
func TestStepsWithoutATokenMayBeRejected(t *testing.T) {
	for _, all := range []bool{false, true} {
		first := -1
		results := silent(t, func(b *dumpfile.Batch) {
			if first < 0 {
				first = b.Meta.Step
			}
			if all || b.Meta.Step == first {
				clear(b.Mask)
			}
		}, "masks/lengths")
		require.Len(t, results, 1)
		require.Equal(t, map[bool]check.Verdict{true: check.Fail, false: check.Undetermined}[all], results[0].Verdict, results[0].Reason)
	}
}

// Rewards that are whitened are no broken convention where a run declares the KL in them and nobody says whether they are: the search has found it.
func TestWhitenedRewardsBesideADeclaredKL(t *testing.T) {
	p, _, err := convention.Lookup("trl-ppo@1.12")
	require.NoError(t, err)
	set := trainer.Complete(p, rand.New(rand.NewPCG(7, 9)))
	for option, text := range map[string]string{"rewards.whiten": "shift_mean_false", "kl.beta": "0.05", "kl.adaptive": "none", "reward.clip": "none", "eos.rule": "none", "score.index": "last_response", "gae.value_mask": "response"} {
		v, err := convention.Parse(option, text)
		require.NoError(t, err)
		set = set.With(option, v, "test")
	}
	var list dump.Batches
	for step := range 2 {
		b, full := trainer.Healthy(trainer.Config{Set: set, Rows: 16, Cols: 8, Seed: uint64(11 + step)})
		b = plant.Declared(b, full)
		b.Meta.Step = step
		b.Meta.Framework, b.Meta.Version, b.Meta.Profile = "custom", "", ""
		b.Meta.Options = slices.DeleteFunc(slices.Clone(b.Meta.Options), func(o dumpfile.Option) bool {
			return strings.HasPrefix(o.Name, "rewards.whiten")
		})
		list = append(list, b)
	}
	r, err := dump.Judge(context.Background(), list, dump.Options{Selection: check.Selection{Select: []string{"reward/token"}}})
	require.NoError(t, err)
	at := slices.IndexFunc(r.Results, func(r check.Result) bool { return r.Check == "reward/token" })
	require.GreaterOrEqual(t, at, 0)
	require.Equal(t, check.Pass, r.Results[at].Verdict, "%s %v", r.Results[at].Reason, r.Results[at].Explanations)
	require.Contains(t, r.Results[at].Reason, "rewards.whiten=shift_mean_false")
}

package stage_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
)

// roundedGAE is the recursion of one row with a rounding after every operation, γ, λ and α being constants of the format. δ is summed in the
// order that has the largest first sum.
func roundedGAE(round rounder, o rl.GAEOptions, b rl.Rollout) []float64 {
	add := func(a, b float64) float64 {
		if a == 0 || b == 0 {
			return a + b
		}
		return round(a+b, 1)
	}
	mul := func(a, b float64) float64 {
		if a == 1 || b == 1 {
			return a * b
		}
		return round(a*b, 1)
	}
	constant := func(x float64) float64 {
		if float64(float32(x)) == x {
			return x
		}
		return round(x, 1)
	}
	tokens := 0.0
	for _, m := range b.Mask {
		if m {
			tokens++
		}
	}
	gamma, lambda := constant(o.Gamma), constant(o.Lambda)
	if o.LambdaPolicy == rl.LambdaVAPO {
		lambda = add(1, -round(1/mul(constant(o.Alpha), tokens), 1))
	}
	decay := mul(gamma, lambda)
	adv := make([]float64, len(b.Mask))
	for s := range o.Steps(b) {
		var next float64
		if s.Next >= 0 {
			next = adv[s.Next]
		}
		if !s.Step {
			adv[s.Cell] = next
			continue
		}
		gv := mul(gamma, s.NextV)
		delta := add(add(s.R, gv), -s.V)
		switch sums := [3]float64{math.Abs(s.R + gv), math.Abs(s.R - s.V), math.Abs(gv - s.V)}; max(sums[0], sums[1], sums[2]) {
		case sums[1]:
			delta = add(add(s.R, -s.V), gv)
		case sums[2]:
			delta = add(s.R, add(gv, -s.V))
		}
		adv[s.Cell] = add(delta, mul(decay, next))
	}
	return adv
}

// The bound of GAE from both sides, at every token, for every rule for holes and both kinds of λ.
func TestAdversaryOfGAE(t *testing.T) {
	const cols = 5
	mask := []bool{true, true, false, true, true}
	for _, hole := range []string{"none", "carry", "zero_step", "cut", "cut_next"} {
		for _, numbers := range []string{"gae.gamma=0.97 gae.lambda=0.93", "gae.gamma=1 gae.lambda=0.93", "gae.gamma=0.97 gae.lambda=1", "gae.gamma=1 gae.lambda=1", "vapo"} {
			best := make([]float64, cols)
			for seed := range 40 {
				tr := newTrainer(uint64(seed))
				b := oneRow(tr, mask)
				sign := float64(2*(seed%2) - 1) // numbers of one sign are where roundings add up
				tr.grid("token_rewards", func(int) float64 { return sign * math.Abs(tr.r.NormFloat64()) })
				tr.grid("values", func(int) float64 { return -0.3 * sign * math.Abs(tr.r.NormFloat64()) })
				tr.grid("advantages", func(int) float64 { return 0 })
				b.Tensors["advantages"].Type = format.F64
				list := []string{"adv.kind=gae", "whiten.scope=none", "gae.value_mask=response", "rewards.whiten=no", "gae.hole=" + hole}
				h, err := rl.ParseHole(hole)
				require.NoError(t, err)
				o := rl.GAEOptions{Hole: h}
				var set *convention.Set
				if numbers == "vapo" {
					o.LambdaPolicy, o.Gamma, o.Alpha = rl.LambdaVAPO, 0.97, 0.7
					set = options(t, append(list, "gae.gamma=0.97", "gae.lambda_policy=vapo")...).WithFact("vapo_alpha", 0.7)
				} else {
					_, err := fmt.Sscanf(numbers, "gae.gamma=%g gae.lambda=%g", &o.Gamma, &o.Lambda)
					require.NoError(t, err)
					set = options(t, append(list, fmt.Sprintf("gae.gamma=%g", o.Gamma), fmt.Sprintf("gae.lambda=%g", o.Lambda), "gae.lambda_policy=none")...)
				}
				judged := judged32(t, "gae/advantage", b, set)
				require.NotNil(t, judged.Tally, judged.Lacking())
				rollout := rl.Rollout{Rows: 1, Cols: cols, Reward: b.Token("token_rewards"), Value: b.Token("values"), Mask: mask}
				sum := reach(func(round rounder) []float64 { return roundedGAE(round, o, rollout) })
				for i, m := range mask {
					if m {
						share := sum[i] / judged.Limit(i)
						require.LessOrEqual(t, share, 1.000001, "%s, %s, seed %d, cell %d", hole, numbers, seed, i)
						best[i] = max(best[i], share)
					}
				}
			}
			t.Logf("gae/advantage %-10s %-32s %.2f", hole, numbers, best)
			for i, m := range mask {
				require.True(t, !m || best[i] >= 0.8, "%s, %s, cell %d: the bound is wider than rounding makes it, %.2f", hole, numbers, i, best[i])
			}
		}
	}
}

// oneRow gives a trainer a batch of one row.
func oneRow(tr *trainer, mask []bool) *dump.Batch {
	n := len(mask)
	tr.b = &dump.Batch{Rows: 1, Cols: n, Mask: mask, Tensors: map[string]*dump.Tensor{}, Meta: tr.b.Meta,
		Files: []dump.FileInfo{{Name: "file", Hi: 1, Cols: n}}, Origin: []dump.Origin{{Cols: n}}}
	return tr.b
}

// The bounds of scores: what a rule for responses without EOS, and clipping, make of them, the penalty and the bounds of the clip being
// constants of the format.
func TestAdversaryOfScores(t *testing.T) {
	constant := func(round rounder, x float64) float64 { return round(x, 1) }
	for _, c := range []struct {
		name, options string
		score         float64
		program       func(round rounder, s float64) float64
	}{
		{"eos.rule subtract", "eos.rule=subtract eos.penalty=1.3 reward.clip=none", 0.25, func(r rounder, s float64) float64 { return r(s-constant(r, 1.3), 1) }},
		{"eos.rule replace", "eos.rule=replace eos.penalty=-1.3 reward.clip=none", 0.25, func(r rounder, s float64) float64 { return constant(r, -1.3) }},
		{"eos.rule scale", "eos.rule=scale eos.penalty=0.7 reward.clip=none", 0.25, func(r rounder, s float64) float64 { return r(s*constant(r, 0.7), 1) }},
		{"eos.rule scale, negative", "eos.rule=scale eos.penalty=-0.7 reward.clip=none", 0.25, func(r rounder, s float64) float64 { return constant(r, -0.7) }},
		{"reward.clip, above", "eos.rule=none reward.clip=before_baseline reward.clip_range=-0.6,0.8", 1, func(r rounder, s float64) float64 { return constant(r, 0.8) }},
		{"reward.clip, below", "eos.rule=none reward.clip=before_baseline reward.clip_range=-0.6,0.8", -1, func(r rounder, s float64) float64 { return constant(r, -0.6) }},
		{"reward.clip, on the bound", "eos.rule=none reward.clip=before_baseline reward.clip_range=-0.6,0.75", 0.75, func(r rounder, s float64) float64 { return constant(r, 0.75) }},
	} {
		tr := newTrainer(1)
		b := oneRow(tr, []bool{true, true})
		b.Tensors["scores"] = &dump.Tensor{Name: "scores", Layout: dump.PerRow, Width: 1, Type: format.F32, Shape: []int{1}, Data: []float64{c.score}}
		b.Tensors["response_ids"] = &dump.Tensor{Name: "response_ids", Layout: dump.PerToken, Width: 1, Type: format.I64, Shape: []int{1, 2}, Data: []float64{5, 6}}
		tr.grid("token_rewards", func(int) float64 { return 0 })
		b.Tensors["token_rewards"].Type = format.F64
		set := options(t, strings.Fields("adv.kind=gae kl.place=none score.index=last_response eos.test=eos_id rewards.whiten=no "+c.options)...).WithFact("eos_token_id", 2.)
		judged := judged32(t, "reward/token", b, set)
		require.NotNil(t, judged.Tally, "%s: %s", c.name, judged.Lacking())
		got := c.program(func(x, _ float64) float64 { return x }, c.score)
		require.InDelta(t, got, judged.Pred.Want[1], 1e-12, c.name)
		share := reach(func(round rounder) []float64 { return []float64{c.program(round, c.score)} })[0] / judged.Limit(1)
		t.Logf("reward/token %-28s %.3f", c.name, share)
		require.LessOrEqual(t, share, 1.000001, c.name)
		require.GreaterOrEqual(t, share, 0.8, c.name)
	}
}

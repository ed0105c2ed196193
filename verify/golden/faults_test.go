package golden_test

import (
	"fmt"
	"testing"

	"plumbline/reference/rl"

	"github.com/stretchr/testify/require"
)

// find returns the entries of a function of a framework for a case.
func find(t *testing.T, section, peer, function, name string) []*entry {
	t.Helper()
	var found []*entry
	for _, e := range load(t, section) {
		if e.Peer == peer && e.Function == function && e.Case == name {
			found = append(found, e)
		}
	}
	require.NotEmpty(t, found, "%s %s %s %s", section, peer, function, name)
	return found
}

// TestGoldenRejectsGAE recomputes entries with one option wrong; the comparison that accepts the right option must refuse.
func TestGoldenRejectsGAE(t *testing.T) {
	e := find(t, "gae", "verl", "compute_gae_advantage_return", "holes")[0]
	require.False(t, e.flag(t, "whiten"))
	want := e.output(t, "advantages").Data
	b := rollout(t, e)
	right := rl.GAEOptions{Gamma: e.input(t, "gamma").scalar(t), Lambda: e.input(t, "lam").scalar(t), Hole: rl.HoleCarry}
	compute := func(b rl.Rollout, o rl.GAEOptions) []float64 {
		adv, _ := rl.GAE(nil, nil, b, o)
		return adv
	}
	require.NoError(t, near(compute(b, right), want, exact))
	for hole := rl.HoleNone; hole <= rl.HoleCutNext; hole++ {
		if o := right; hole != rl.HoleCarry {
			o.Hole = hole
			require.Error(t, near(compute(b, o), want, exact), "%v", hole)
		}
	}
	for name, o := range map[string]rl.GAEOptions{
		"γ":    {Gamma: right.Gamma + 1e-9, Lambda: right.Lambda, Hole: right.Hole},
		"λ":    {Gamma: right.Gamma, Lambda: right.Lambda + 1e-9, Hole: right.Hole},
		"vapo": {Gamma: right.Gamma, LambdaPolicy: rl.LambdaVAPO, Alpha: 1, Hole: right.Hole},
	} {
		require.Error(t, near(compute(b, o), want, exact), name)
	}
	late := b
	late.Reward = append([]float64{0}, b.Reward[:len(b.Reward)-1]...)
	require.Error(t, near(compute(late, right), want, exact), "rewards one token late")

	for _, e := range find(t, "gae", "verl", "compute_gae_advantage_return", "contiguous_sparse_score")[1:] {
		require.True(t, e.flag(t, "whiten"))
		b, want := rollout(t, e), e.output(t, "advantages").Data
		o := right
		o.Gamma, o.Lambda = e.input(t, "gamma").scalar(t), e.input(t, "lam").scalar(t)
		adv := compute(b, o)
		rejectWhiten(t, adv, b.Mask, b.Rows, b.Cols, want)
	}
}

// rejectWhiten plants wrong options in verl's masked_whiten.
func rejectWhiten(t *testing.T, x []float64, mask []bool, rows, cols int, want []float64) {
	t.Helper()
	compute := func(plant func(o *rl.WhitenOptions)) []float64 {
		o := whitenOf("verl", true)
		plant(&o)
		y, err := rl.Whiten(nil, x, mask, rows, cols, o)
		require.NoError(t, err)
		return y
	}
	require.NoError(t, near(compute(func(*rl.WhitenOptions) {}), want, exact))
	for name, plant := range map[string]func(o *rl.WhitenOptions){
		"ddof 0":        func(o *rl.WhitenOptions) { o.Var.DDof = 0 },
		"mean.eps 0":    func(o *rl.WhitenOptions) { o.Var.Mean.Eps = 0 },
		"floor":         func(o *rl.WhitenOptions) { o.EpsPlace = rl.FloorVar },
		"eps added":     func(o *rl.WhitenOptions) { o.EpsPlace = rl.AddStd },
		"by row":        func(o *rl.WhitenOptions) { o.Scope, o.Var.Single = rl.ScopeRow, rl.SingleZero },
		"not shifted":   func(o *rl.WhitenOptions) { o.Shift = rl.ShiftFalsePlain },
		"mean restored": func(o *rl.WhitenOptions) { o.Shift = rl.ShiftFalseAddBack },
		"remasked":      func(o *rl.WhitenOptions) { o.Remask = true },
	} {
		require.Error(t, near(compute(plant), want, exact), name)
	}
}

// TestGoldenRejectsGroups plants wrong options in verl's and TRL's group advantages, and rewards grouped by stride.
func TestGoldenRejectsGroups(t *testing.T) {
	e := find(t, "group_advantages", "verl", "compute_grpo_outcome_advantage", "interleaved_partial")[0]
	require.True(t, e.flag(t, "norm_adv_by_std_in_grpo"))
	reward, m := e.input(t, "token_level_rewards"), e.input(t, "response_mask").bools()
	rows, cols := reward.dims(t)
	score := rl.RowSums(nil, reward.Data, nil, rows, cols)
	var uid []string
	for _, id := range e.input(t, "uid").Raw.([]any) {
		uid = append(uid, fmt.Sprint(id))
	}
	right := rl.GroupOptions{Scale: rl.ScaleGroupStd, DDof: 1, Eps: 1e-6, Singleton: rl.SingletonRaw}
	compute := func(group []int, o rl.GroupOptions) []float64 {
		adv, err := rl.GroupAdvantage(nil, score, group, o)
		require.NoError(t, err)
		return rl.Broadcast(nil, adv, m, rows, cols)
	}
	want := e.output(t, "advantages").Data
	require.NoError(t, near(compute(rl.GroupUIDs(uid), right), want, exact))
	require.Error(t, near(compute(rl.GroupBlocks(rows, 3), right), want, exact), "by stride")
	for name, plant := range map[string]func(o *rl.GroupOptions){
		"ddof 0":          func(o *rl.GroupOptions) { o.DDof = 0 },
		"OpenRLHF's eps":  func(o *rl.GroupOptions) { o.Eps = 1e-9 },
		"loo":             func(o *rl.GroupOptions) { o.Center = rl.CenterLOO },
		"uncentred":       func(o *rl.GroupOptions) { o.Center = rl.CenterNone },
		"batch deviation": func(o *rl.GroupOptions) { o.Scale = rl.ScaleBatchStd },
		"others' spread":  func(o *rl.GroupOptions) { o.Scale = rl.ScaleLOOStd },
		"unscaled":        func(o *rl.GroupOptions) { o.Scale = rl.ScaleNone },
	} {
		o := right
		plant(&o)
		require.Error(t, near(compute(rl.GroupUIDs(uid), o), want, exact), name)
	}

	some := find(t, "group_advantages", "trl", "GRPOTrainer._generate_and_score_completions (advantage statements)", "trl_some_nan")
	for _, e := range some {
		r, w := e.input(t, "rewards_per_func"), e.input(t, "reward_weights").Data
		n, _ := r.dims(t)
		group := rl.GroupBlocks(n, int(e.input(t, "num_generations").scalar(t)))
		o := rl.GroupOptions{DDof: 1, Eps: 1e-4, Singleton: rl.SingletonZero}
		adv, err := rl.MultiAdvantage(nil, r.Data, w, group, rl.SumThenNormalize, o)
		require.NoError(t, err)
		require.Error(t, near(adv, e.output(t, "advantages").Data, float32Leak), "%s: NaN not skipped", e.name())
	}
}

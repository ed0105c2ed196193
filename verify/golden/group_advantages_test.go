package golden_test

import (
	"fmt"
	"testing"

	"plumbline/reference/rl"

	"github.com/stretchr/testify/require"
)

// verlVectorised is the tolerance for compute_grpo_vectorized_outcome_advantage, which computes in float32: the rewards are
// of magnitude 1 and their spread is not below 0.1 but for groups that are equal, so that a mean off by 2⁻²⁴ and a standard
// deviation off by a few 2⁻²⁴ show as 1e-6.
const verlVectorised = 1e-6

// verlSingleton is the leak of verl's GRPO for a group of one: 1.0 + ε is a float32 tensor, so that the reward is divided by
// 1 + 9.5367e-7 instead of 1 + 1e-6.
const verlSingleton = 5e-8

func TestGroupAdvantages(t *testing.T) {
	compared := 0
	for _, e := range load(t, "group_advantages") {
		switch e.Peer {
		case "verl":
			verlGroup(t, e)
		case "trl":
			trlGroup(t, e)
		default:
			t.Errorf("%s: not compared", e.name())
		}
		compared++
	}
	require.Equal(t, 171, compared)
}

// verlGroup compares an estimator of verl.
func verlGroup(t *testing.T, e *entry) {
	reward := e.input(t, "token_level_rewards")
	rows, cols := reward.dims(t)
	m := e.input(t, "response_mask").bools()
	var uid []string
	for _, id := range e.input(t, "uid").Raw.([]any) {
		uid = append(uid, fmt.Sprint(id))
	}
	group := rl.GroupUIDs(uid)
	score := rl.RowSums(nil, reward.Data, nil, rows, cols)
	length := make([]float64, rows)
	size := make([]int, rows)
	for i := range rows {
		for _, b := range m[i*cols : (i+1)*cols] {
			if b {
				length[i]++
			}
		}
		size[group[i]]++
	}
	lonely := false
	for _, n := range size {
		lonely = lonely || n == 1
	}
	white := whitenOf("verl", true)
	white.Remask = true
	grpo := rl.GroupOptions{DDof: 1, Eps: 1e-6, Singleton: rl.SingletonRaw}
	if norm, ok := e.Options["norm_adv_by_std_in_grpo"].(bool); ok && norm {
		grpo.Scale = rl.ScaleGroupStd
	}

	want := e.output(t, "advantages")
	tol := exact
	var adv, ret []float64
	var err error
	switch e.Function {
	case "compute_grpo_outcome_advantage", "compute_grpo_vectorized_outcome_advantage":
		adv, err = rl.GroupAdvantage(nil, score, group, grpo)
		if lonely && grpo.Scale != rl.ScaleNone {
			tol = verlSingleton
		}
		if e.Function == "compute_grpo_vectorized_outcome_advantage" {
			tol = verlVectorised
		}
	case "compute_grpo_passk_outcome_advantage":
		adv, err = rl.PassKAdvantage(nil, score, group, grpo.Scale != rl.ScaleNone, 1e-6)
	case "compute_gdpo_outcome_advantage", "compute_reinforce_plus_plus_baseline_outcome_advantage":
		adv, err = rl.GroupAdvantage(nil, score, group, grpo)
		require.NoError(t, err)
		adv = rl.Broadcast(nil, adv, m, rows, cols)
		adv, err = rl.Whiten(adv, adv, m, rows, cols, white)
		if lonely && grpo.Scale != rl.ScaleNone {
			tol = verlSingleton
		}
	case "compute_rloo_outcome_advantage":
		adv, err = rl.GroupAdvantage(nil, score, group, rl.GroupOptions{Center: rl.CenterLOO, Singleton: rl.SingletonRaw})
	case "compute_rloo_vectorized_outcome_advantage":
		adv, err = rl.GroupAdvantage(nil, score, group, rl.GroupOptions{Center: rl.CenterLOO, Singleton: rl.SingletonZero})
	case "compute_opo_outcome_advantage":
		adv = rl.OPOAdvantage(nil, score, length, group)
	case "compute_gpg_outcome_advantage":
		norm, _ := e.num(t, "f_norm")
		adv = rl.GPGAdvantage(nil, score, group, norm)
		tol = float32Leak // N/N₊ is a quotient of integers
	case "compute_reinforce_plus_plus_outcome_advantage":
		gamma, _ := e.num(t, "gamma")
		adv, ret, err = rl.ReinforcePlusPlus(nil, nil, reward.Data, m, rows, cols, rl.ReturnToGo, gamma, rl.HoleCarry, white)
		requireNear(t, e, "returns", rl.Remask(nil, ret, m), rl.Remask(nil, e.output(t, "returns").Data, m), exact)
	case "compute_remax_outcome_advantage":
		adv, ret = rl.ReMaxAdvantage(nil, nil, reward.Data, e.input(t, "reward_baselines").Data, m, rows, cols)
		requireNear(t, e, "returns", ret, e.output(t, "returns").Data, exact)
	case "compute_optimal_token_baseline_advantage":
		require.True(t, e.flag(t, "handle_zero_tail"))
		adv = rl.OptimalTokenBaseline(nil, reward.Data, e.input(t, "old_log_probs").Data, e.input(t, "sum_pi_squared").Data, m, group, rows, cols, 1e-8)
	default:
		t.Errorf("%s: not compared", e.name())
		return
	}
	if requireRaises(t, e, want, err) {
		return
	}
	if len(adv) == rows {
		adv = rl.Broadcast(nil, adv, m, rows, cols)
	}
	requireNear(t, e, "advantages", adv, want.Data, tol)
}

// trlGroup compares the advantage statements of TRL's GRPOTrainer and RLOOTrainer.
func trlGroup(t *testing.T, e *entry) {
	reward, weight := e.input(t, "rewards_per_func"), e.input(t, "reward_weights").Data
	rows, _ := reward.dims(t)
	group := rl.GroupBlocks(rows, int(e.input(t, "num_generations").scalar(t)))
	o := rl.GroupOptions{DDof: 1, Eps: 1e-4, Singleton: rl.SingletonZero, SkipNaN: true}
	tol := float32Leak // nanstd; exact where nothing is divided
	var adv []float64
	var err error
	switch e.Function {
	case "GRPOTrainer._generate_and_score_completions (advantage statements)":
		switch e.str(t, "scale_rewards") {
		case "group":
			o.Scale = rl.ScaleGroupStd
		case "batch":
			o.Scale = rl.ScaleBatchStd
		case "none":
			tol = exact
		default:
			t.Fatalf("%s: scale_rewards", e.name())
		}
		how, err2 := rl.ParseMultiReward(e.str(t, "multi_objective_aggregation"))
		require.NoError(t, err2)
		if how == rl.NormalizeThenSum {
			o.Scale = rl.ScaleGroupStd
		}
		adv, err = rl.MultiAdvantage(nil, reward.Data, weight, group, how, o)
	case "RLOOTrainer._generate_and_score_completions (advantage statements)":
		o.Center, o.Singleton = rl.CenterLOO, rl.SingletonNaN
		score := rl.WeightedReward(nil, reward.Data, weight, rows)
		if clip := e.nums(t, "reward_clip_range"); clip != nil {
			rl.ClipRewards(score, score, clip[0], clip[1])
		}
		old, ref := e.input(t, "old_per_token_logps"), e.input(t, "ref_per_token_logps").Data
		_, cols := old.dims(t)
		d := make([]float64, len(ref))
		for i := range d {
			d[i] = old.Data[i] - ref[i]
		}
		beta, _ := e.num(t, "beta")
		for i, kl := range rl.RowSums(nil, d, e.input(t, "completion_mask").bools(), rows, cols) {
			score[i] -= float64(beta * kl)
		}
		if e.flag(t, "normalize_advantages") {
			o.Scale, o.BatchCentred = rl.ScaleBatchStd, true
		} else {
			tol = exact
		}
		adv, err = rl.GroupAdvantage(nil, score, group, o)
	default:
		t.Errorf("%s: not compared", e.name())
		return
	}
	require.NoError(t, err, e.name())
	requireNear(t, e, "advantages", adv, e.output(t, "advantages").Data, tol)
}

package golden_test

import (
	"math"
	"testing"

	"plumbline/reference/rl"

	"github.com/stretchr/testify/require"
)

func TestGAE(t *testing.T) {
	compared, left := 0, 0
	for _, e := range load(t, "gae") {
		switch e.Function {
		case "compute_gae_advantage_return":
			verlGAE(t, e)
		case "RemoteExperienceMaker.get_advantages_and_returns":
			openrlhfGAE(t, e)
		case "RemoteExperienceMaker.get_cumulative_returns":
			r := e.input(t, "token_level_rewards")
			rows, cols := r.dims(t)
			got := rl.RewardToGo(nil, r.Data, e.input(t, "response_mask").bools(), rows, cols, e.input(t, "gamma").scalar(t), rl.HoleZeroStep)
			requireNear(t, e, "returns", got, e.output(t, "returns").Data, exact)
		case "RemoteExperienceMaker.compute_advantages_and_returns":
			openrlhfDriver(t, e)
		case "PPOTrainer.train (rollout statements)":
			trlRollout(t, e)
		case "PPOTrainer.train (minibatch statements)":
			left++ // policy and value loss: TestTRLMinibatch
			continue
		default:
			t.Errorf("%s: not compared", e.name())
		}
		compared++
	}
	require.Equal(t, 109, compared)
	require.Equal(t, 9, left)
}

// rollout returns the inputs of a GAE entry of verl or OpenRLHF.
func rollout(t *testing.T, e *entry) rl.Rollout {
	r := e.input(t, "token_level_rewards")
	rows, cols := r.dims(t)
	return rl.Rollout{Rows: rows, Cols: cols, Reward: r.Data, Value: e.input(t, "values").Data, Mask: e.input(t, "response_mask").bools()}
}

func verlGAE(t *testing.T, e *entry) {
	b := rollout(t, e)
	adv, ret := rl.GAE(nil, nil, b, rl.GAEOptions{Gamma: e.input(t, "gamma").scalar(t), Lambda: e.input(t, "lam").scalar(t), Hole: rl.HoleCarry})
	requireNear(t, e, "returns", ret, e.output(t, "returns").Data, exact)
	want := e.output(t, "advantages")
	if e.flag(t, "whiten") {
		white, err := rl.Whiten(adv, adv, b.Mask, b.Rows, b.Cols, whitenOf("verl", true))
		if requireRaises(t, e, want, err) {
			return
		}
		adv = white
	}
	requireNear(t, e, "advantages", adv, want.Data, exact)
}

func openrlhfGAE(t *testing.T, e *entry) {
	b := rollout(t, e)
	adv, ret := rl.GAE(nil, nil, b, rl.GAEOptions{Gamma: e.input(t, "gamma").scalar(t), Lambda: e.input(t, "lam").scalar(t),
		Hole: rl.HoleZeroStep, Returns: rl.ReturnsMaskedV})
	requireNear(t, e, "advantages", adv, e.output(t, "advantages").Data, exact)
	requireNear(t, e, "returns", ret, e.output(t, "returns").Data, exact)
}

// openrlhfStatistics bounds the effect of OpenRLHF's float32 mean and standard deviation on whitened advantages of
// magnitude 2 and less: a few units of float32.
const openrlhfStatistics = 4 * float32Leak

// openrlhfDriver repeats compute_advantages_and_returns: baseline of the group, clip, placement of the score, −β·kl, GAE or
// reward-to-go, whitening over all experiences.
func openrlhfDriver(t *testing.T, e *entry) {
	reward, mask := e.input(t, "rewards"), e.input(t, "action_mask")
	rows, cols := mask.dims(t)
	m := mask.bools()
	gamma := e.input(t, "gamma").scalar(t)
	size := int(e.input(t, "n_samples_per_prompt").scalar(t))
	group := make([]int, rows) // samples of a prompt are neighbours before the rows were shuffled
	for i, k := range e.input(t, "index").Data {
		group[i] = int(k) / size
	}

	estimator := e.str(t, "estimator")
	score := reward.Data
	var o rl.GroupOptions
	switch estimator {
	case "gae", "reinforce":
		o.Center = rl.CenterNone
	case "rloo":
		o.Center = rl.CenterLOO
	case "group_norm":
		o = rl.GroupOptions{Scale: rl.ScaleGroupStd, DDof: 1, Eps: 1e-9}
	case "flash_reinforce":
		group = nil
	case "reinforce_baseline", "dr_grpo":
	default:
		t.Fatalf("%s: estimator", e.name())
	}
	score, err := rl.GroupAdvantage(nil, score, group, o)
	require.NoError(t, err)
	clip := e.nums(t, "reward_clip_range")
	rl.ClipRewards(score, score, clip[0], clip[1])
	tokens := rl.TokenRewards(nil, score, e.input(t, "kl").Data, m, nil, rows, cols,
		rl.RewardOptions{Beta: e.input(t, "kl_coef").scalar(t), KLEverywhere: true, EmptyLastColumn: true})

	var adv, ret []float64
	switch estimator {
	case "gae":
		adv, ret = rl.GAE(nil, nil, rl.Rollout{Rows: rows, Cols: cols, Reward: tokens, Value: e.input(t, "values").Data, Mask: m},
			rl.GAEOptions{Gamma: gamma, Lambda: e.input(t, "lam").scalar(t), Hole: rl.HoleZeroStep, Returns: rl.ReturnsMaskedV})
	default:
		if estimator != "reinforce" {
			gamma = 1
		}
		ret = rl.RewardToGo(nil, tokens, m, rows, cols, gamma, rl.HoleZeroStep)
		adv = append([]float64{}, ret...)
	}
	requireNear(t, e, "returns", ret, e.output(t, "returns").Data, exact)

	tol := exact
	switch estimator {
	case "gae", "reinforce", "reinforce_baseline":
		tol = openrlhfStatistics
		if e.flag(t, "no_std_norm") {
			mean, err := rl.MaskedMean(adv, m, meanOf["openrlhf"])
			require.NoError(t, err)
			for i := range adv {
				adv[i] -= mean
			}
			break
		}
		adv, err = rl.Whiten(adv, adv, m, rows, cols, rl.WhitenOptions{Scope: rl.ScopeGlobal, EpsPlace: rl.FloorVar, Eps: 1e-8})
		require.NoError(t, err)
	}
	requireNear(t, e, "advantages", adv, e.output(t, "advantages").Data, tol)
}

// trlCase is the rollout of TRL's PPOTrainer, recomputed.
type trlCase struct {
	rows, cols  int
	mask, p1    []bool // idx ≤ sequence_length, and one token more
	kl, rewards []float64
	adv, ret    []float64
}

// trlRecompute runs the rollout statements in package rl.
func trlRecompute(t *testing.T, e *entry) *trlCase {
	lp, ref := e.input(t, "logprobs"), e.input(t, "ref_logprobs")
	c := new(trlCase)
	c.rows, c.cols = lp.dims(t)
	last := make([]bool, len(lp.Data))
	finished := make([]bool, c.rows)
	for i, l := range e.input(t, "sequence_lengths").Data {
		last[i*c.cols+int(l)] = true
		finished[i] = e.input(t, "contains_eos").Data[i] != 0
	}
	c.mask = rl.LengthMask(nil, last, c.rows, c.cols, 0)
	c.p1 = rl.LengthMask(nil, last, c.rows, c.cols, 1)

	c.kl = make([]float64, len(lp.Data))
	for i := range c.kl {
		if c.mask[i] { // elsewhere both are the sentinel 1.0
			d := lp.Data[i] - ref.Data[i]
			switch e.str(t, "kl_estimator") {
			case "k1":
				c.kl[i] = d
			case "k3":
				c.kl[i] = math.Expm1(-d) + d
			default:
				t.Fatalf("%s: kl_estimator", e.name())
			}
		}
	}
	score := e.input(t, "scores").Data
	if penalty, on := e.num(t, "missing_eos_penalty"); on {
		score = rl.MissingEOS(nil, score, finished, rl.EOSSubtract, penalty)
	}
	beta, _ := e.num(t, "kl_coef")
	c.rewards = rl.TokenRewards(nil, score, c.kl, c.mask, nil, c.rows, c.cols, rl.RewardOptions{Beta: beta, Index: rl.ScoreEOSPlus1})
	if e.flag(t, "whiten_rewards") {
		o := whitenOf("trl-ppo", false)
		o.Remask = true
		var err error
		c.rewards, err = rl.Whiten(c.rewards, c.rewards, c.p1, c.rows, c.cols, o)
		require.NoError(t, err)
	}
	gamma, _ := e.num(t, "gamma")
	lambda, _ := e.num(t, "lam")
	c.adv, c.ret = rl.GAE(nil, nil, rl.Rollout{Rows: c.rows, Cols: c.cols, Reward: c.rewards, Value: e.input(t, "values").Data, Mask: c.mask},
		rl.GAEOptions{Gamma: gamma, Lambda: lambda, Value: rl.ValueP1, Returns: rl.ReturnsMaskedV})
	o := whitenOf("trl-ppo", true)
	o.Remask = true
	var err error
	c.adv, err = rl.Whiten(c.adv, c.adv, c.mask, c.rows, c.cols, o)
	require.NoError(t, err)
	return c
}

// trlWhitened bounds the float32 Bessel factor through rsqrt (half of float32Leak) and, with whitened rewards, through the
// sum of up to nine rewards of a row.
const trlWhitened = 2 * float32Leak

func trlRollout(t *testing.T, e *entry) {
	c := trlRecompute(t, e)
	tol := exact
	if e.flag(t, "whiten_rewards") {
		tol = trlWhitened
	}
	requireNear(t, e, "kl", c.kl, e.output(t, "kl").Data, exact)
	requireNear(t, e, "rewards", c.rewards, e.output(t, "rewards").Data, tol)
	requireNear(t, e, "returns", c.ret, e.output(t, "returns").Data, tol)
	requireNear(t, e, "advantages", c.adv, e.output(t, "advantages").Data, trlWhitened)
	for i, pad := range e.output(t, "padding_mask").bools() {
		require.Equal(t, !c.mask[i], pad, "%s: padding_mask %d", e.name(), i)
		require.Equal(t, !c.p1[i], e.output(t, "padding_mask_p1").bools()[i], "%s: padding_mask_p1 %d", e.name(), i)
	}
}

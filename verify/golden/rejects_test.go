package golden

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/reference/optim"
	"plumbline/reference/rl"
)

// find returns the entries of a function of a framework for a case.
func find(t *testing.T, s *Set, section, peer, function, name string) []*Entry {
	t.Helper()
	var found []*Entry
	for _, e := range s.Sections[section].Entries {
		if e.Peer == peer && e.Function == function && e.Case == name {
			found = append(found, e)
		}
	}
	require.NotEmpty(t, found, "%s %s %s %s", section, peer, function, name)
	return found
}

// accepts and rejects judge an entry by a computation of the test: one option wrong must be seen in the numbers.
func accepts(t *testing.T, e *Entry, f recompute) {
	t.Helper()
	o := judgedBy(t, e, f)
	require.Zero(t, o.failed, "%s: %s", e.Name(), o.first.String())
}

func rejects(t *testing.T, e *Entry, what string, f recompute) {
	t.Helper()
	require.NotZero(t, judgedBy(t, e, f).failed, "%s: %s", e.Name(), what)
}

func judgedBy(t *testing.T, e *Entry, f recompute) *outcome {
	t.Helper()
	c := e.copied()
	c.Options = map[string]any{} // the computation of the test does not read them
	o, err := judge(c, f)
	require.NoError(t, err)
	return o
}

// TestRejectsGAE recomputes entries with one option wrong; the comparison that accepts the right option must refuse.
func TestRejectsGAE(t *testing.T) {
	s := embedded(t)
	e := find(t, s, "gae", "verl", "compute_gae_advantage_return", "holes")[0]
	require.Equal(t, false, e.Options["whiten"])
	right := rl.GAEOptions{Gamma: e.In["gamma"].Data[0], Lambda: e.In["lam"].Data[0], Hole: rl.HoleCarry}
	compute := func(o rl.GAEOptions, late bool) recompute {
		return func(c *call) []answer {
			b := rollout(c)
			if late {
				b.Reward = append([]float64{0}, b.Reward[:len(b.Reward)-1]...)
			}
			adv, ret := rl.GAE(nil, nil, b, o)
			return []answer{plain("advantages", adv...), plain("returns", ret...)}
		}
	}
	accepts(t, e, compute(right, false))
	for hole := rl.HoleNone; hole <= rl.HoleCutNext; hole++ {
		if o := right; hole != rl.HoleCarry {
			o.Hole = hole
			rejects(t, e, hole.String(), compute(o, false))
		}
	}
	for name, o := range map[string]rl.GAEOptions{
		"γ":    {Gamma: right.Gamma + 1e-9, Lambda: right.Lambda, Hole: right.Hole},
		"λ":    {Gamma: right.Gamma, Lambda: right.Lambda + 1e-9, Hole: right.Hole},
		"vapo": {Gamma: right.Gamma, LambdaPolicy: rl.LambdaVAPO, Alpha: 1, Hole: right.Hole},
	} {
		rejects(t, e, name, compute(o, false))
	}
	rejects(t, e, "rewards one token late", compute(right, true))

	for _, e := range find(t, s, "gae", "verl", "compute_gae_advantage_return", "contiguous_sparse_score")[1:] {
		require.Equal(t, true, e.Options["whiten"])
		o := right
		o.Gamma, o.Lambda = e.In["gamma"].Data[0], e.In["lam"].Data[0]
		whitened := func(plant func(w *rl.WhitenOptions)) recompute {
			return func(c *call) []answer {
				b := rollout(c)
				adv, ret := rl.GAE(nil, nil, b, o)
				w := c.whitenOf("verl", true)
				plant(&w)
				adv, err := rl.Whiten(adv, adv, b.Mask, b.Rows, b.Cols, w)
				return []answer{refused("advantages", adv, err), plain("returns", ret...)}
			}
		}
		accepts(t, e, whitened(func(*rl.WhitenOptions) {}))
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
			rejects(t, e, name, whitened(plant))
		}
	}
}

// TestRejectsGroups plants wrong options in verl's and TRL's group advantages, and rewards grouped by stride.
func TestRejectsGroups(t *testing.T) {
	s := embedded(t)
	e := find(t, s, "group_advantages", "verl", "compute_grpo_outcome_advantage", "interleaved_partial")[0]
	require.Equal(t, true, e.Options["norm_adv_by_std_in_grpo"])
	compute := func(plant func(o *rl.GroupOptions), stride int) recompute {
		return func(c *call) []answer {
			b := readOutcome(c)
			if stride > 0 {
				b.group = rl.GroupBlocks(b.rows, stride)
			}
			o, _ := c.outcome("grpo")
			plant(&o)
			adv, err := rl.GroupAdvantage(nil, b.score, b.group, o)
			return []answer{refused("advantages", b.spread(adv), err)}
		}
	}
	same := func(*rl.GroupOptions) {}
	accepts(t, e, compute(same, 0))
	rejects(t, e, "by stride", compute(same, 3))
	for name, plant := range map[string]func(o *rl.GroupOptions){
		"ddof 0":          func(o *rl.GroupOptions) { o.DDof = 0 },
		"OpenRLHF's eps":  func(o *rl.GroupOptions) { o.Eps = 1e-9 },
		"loo":             func(o *rl.GroupOptions) { o.Center = rl.CenterLOO },
		"uncentred":       func(o *rl.GroupOptions) { o.Center = rl.CenterNone },
		"batch deviation": func(o *rl.GroupOptions) { o.Scale = rl.ScaleBatchStd },
		"others' spread":  func(o *rl.GroupOptions) { o.Scale = rl.ScaleLOOStd },
		"unscaled":        func(o *rl.GroupOptions) { o.Scale = rl.ScaleNone },
	} {
		rejects(t, e, name, compute(plant, 0))
	}
	// Of an entry with NaN rewards the disagreement is about them: undetermined, and never a pass.
	for _, e := range find(t, s, "group_advantages", "trl", "GRPOTrainer._generate_and_score_completions (advantage statements)", "trl_some_nan") {
		o := judgedBy(t, e, func(c *call) []answer {
			r, w, group := scored(c)
			adv, err := rl.MultiAdvantage(nil, r, w, group, rl.SumThenNormalize, rl.GroupOptions{DDof: 1, Eps: 1e-4, Singleton: rl.SingletonZero})
			return []answer{refused("advantages", adv, err)}
		})
		require.True(t, o.failed > 0 || o.unknown != "", "%s: NaN not skipped", e.Name())
	}
}

// TestRejectsKL: a wrong clamp and a wrong gradient differ from what the frameworks returned.
func TestRejectsKL(t *testing.T) {
	s := embedded(t)
	n := 0
	for _, e := range find(t, s, "kl", "verl", "kl_penalty", "extreme") {
		if e.Options["kind"] != "k3" && e.Options["kind"] != "k1+" {
			continue
		}
		for name, o := range map[string]rl.KLOptions{
			"TRL":      {Kind: rl.KLK3},
			"NeMo-RL":  {Kind: rl.KLK1, ClampIn: 20, ClampOut: 10, ClampAll: true, Grad: rl.KLStraightThroughK2},
			"naive k1": {Kind: rl.KLK1},
		} {
			rejects(t, e, name, func(c *call) []answer {
				lp, ref := logProbPair(c)
				value, grad := rl.KL(nil, nil, lp, ref, nil, o)
				return []answer{plain("kl", value...), plain("dkl_dlogp", grad...)}
			})
			n++
		}
	}
	require.Equal(t, 6, n)
}

// TestRejectsPolicy: for each framework the comparison tells its options from a neighbour's.
func TestRejectsPolicy(t *testing.T) {
	s := embedded(t)
	caught := map[string]int{}
	for _, e := range s.Sections["policy_loss"].Entries {
		var faults map[string]func(p *policyCase)
		switch o := e.Options; {
		case e.Case != "contiguous":
			continue
		case e.Function == "compute_policy_loss_vanilla" && o["loss_agg_mode"] == "seq-mean-token-mean":
			faults = map[string]func(p *policyCase){
				"TRL's lengths":      func(p *policyCase) { p.opt.Agg.LenEps = 0 },
				"TRL's upper bound":  func(p *policyCase) { p.opt.Clip.High = 0.28 },
				"mean over tokens":   func(p *policyCase) { p.opt.Agg.Kind = rl.AggToken },
				"ratio of sequences": func(p *policyCase) { p.opt.Ratio.Level = rl.RatioSeqMean },
			}
		case e.Function == "PolicyLoss" && o["policy_loss_type"] == "gspo":
			faults = map[string]func(p *policyCase){
				"verl's gradient per token": func(p *policyCase) { p.opt.Ratio.PerToken = true },
				"sum over the sequence":     func(p *policyCase) { p.opt.Ratio.Level, p.opt.Kind = rl.RatioSeqSum, rl.LossPPO },
			}
		case e.Function == "GRPOTrainer._compute_loss" && o["use_bias_correction_kl"] == true:
			faults = map[string]func(p *policyCase){
				"k3 without the ratio": func(p *policyCase) { p.opt.KL.Grad = rl.KLNaive },
				"ratio detached":       func(p *policyCase) { p.opt.KL.Grad = rl.KLScoreFunction },
				"tokens at hand":       func(p *policyCase) { p.opt.Agg.Denominator = rl.AggMicro },
			}
		case e.Function == "GRPOTrainer._compute_loss" && o["loss_type"] == "sapo":
			faults = map[string]func(p *policyCase){"equal temperatures": func(p *policyCase) { p.opt.TauNeg = 1 }}
		case e.Function == "GRPOTrainer._compute_loss" && o["loss_type"] == "cispo" && o["epsilon_high"] != 3.0:
			faults = map[string]func(p *policyCase){"1 + the cap": func(p *policyCase) { p.opt.Clip.HighAbsolute = false }}
		}
		f := map[string]func(*call) (*policyCase, float64){"verl": readVerl, "openrlhf": readOpenRLHF, "trl": func(c *call) (*policyCase, float64) {
			p, _, bonus := readTRL(c)
			return p, bonus
		}}[e.Peer]
		for what, fault := range faults {
			o, err := judge(e, func(c *call) []answer {
				p, bonus := f(c)
				require.True(t, c.ok())
				fault(p)
				return p.answers(c, bonus, nil, "")
			})
			require.NoError(t, err)
			require.NotZero(t, o.failed, "%s: %s", e.Name(), what)
			caught[e.Peer]++
		}
	}
	require.Greater(t, caught["verl"], 4)
	require.Greater(t, caught["openrlhf"], 1)
	require.Greater(t, caught["trl"], 4)
}

// TestRejectsAdam: the other place of ε must not pass.
func TestRejectsAdam(t *testing.T) {
	s := embedded(t)
	for _, e := range s.Sections["adamw"].Entries {
		if e.Options["dtype"] != "float64" {
			continue
		}
		r := &adamRun{n: e.In["grads"].Shape[1], steps: e.In["grads"].Shape[0], p0: e.In["p0"].Data, grads: append([]float64{}, e.In["grads"].Data...), skipFirst: true,
			params: e.Out["params"].Data, m: e.Out["exp_avg"].Data, v: e.Out["exp_avg_sq"].Data}
		betas := numbers(e.Options["betas"])
		r.opt = optim.Adam{LR: e.Options["lr"].(float64), Beta1: betas[0], Beta2: betas[1], Eps: e.Options["eps"].(float64), WeightDecay: e.Options["weight_decay"].(float64),
			AMSGrad: e.Options["amsgrad"].(bool)}
		if limit, ok := e.Options["max_norm"].(float64); ok {
			for i := range r.steps {
				optim.ClipGlobalNorm([][]float64{r.row(r.grads, i)}, limit)
			}
		}
		for form, same := range map[optim.Form]bool{optim.PyTorch: true, optim.TensorFlow1: false} {
			r.opt.Form = form
			r.gotP, r.gotM, r.gotV = make([]float64, len(r.params)), make([]float64, len(r.params)), make([]float64, len(r.params))
			r.chain()
			far := 0.0
			for i := r.n; i < len(r.params); i++ {
				far = max(far, math.Abs(r.gotP[i]-r.params[i]))
			}
			require.Equal(t, same, far <= exact, "%s: form %d is off by %v", e.Name(), form, far)
		}
	}
}

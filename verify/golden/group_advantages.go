package golden

import (
	"strconv"
	"strings"

	"plumbline/reference/rl"
)

// GroupAdvantages judges the outcome advantages of verl and of TRL's GRPO and RLOO.
var GroupAdvantages = groupAdvantages.check()

const (
	trlGRPO = "trl GRPOTrainer._generate_and_score_completions (advantage statements)"
	trlRLOO = "trl RLOOTrainer._generate_and_score_completions (advantage statements)"
)

var groupAdvantages = &section{
	name:  "group_advantages",
	title: "group advantages are those of verl and TRL",
	doc: `Recomputes (r − μ)/(σ + ε) of groups, leave-one-out, pass@k, GDPO, OPO, GPG, REINFORCE++, ReMax and the optimal token
baseline of verl, and the advantages of TRL's GRPO (group, batch, none; both ways to join reward functions) and RLOO.
Compares advantages and returns; a group of one must be refused where verl raises.`,
	source: "options adv.*; reference/rl GroupAdvantage, MultiAdvantage, PassKAdvantage, OPOAdvantage, GPGAdvantage, ReinforcePlusPlus, ReMaxAdvantage, OptimalTokenBaseline",
	functions: map[string]recompute{
		"verl compute_grpo_outcome_advantage":                         verlGRPO,
		"verl compute_grpo_vectorized_outcome_advantage":              verlVectorised,
		"verl compute_grpo_passk_outcome_advantage":                   verlPassK,
		"verl compute_gdpo_outcome_advantage":                         verlWhitenedGroups,
		"verl compute_reinforce_plus_plus_baseline_outcome_advantage": verlWhitenedGroups,
		"verl compute_rloo_outcome_advantage":                         verlRLOO,
		"verl compute_rloo_vectorized_outcome_advantage":              verlRLOO,
		"verl compute_opo_outcome_advantage":                          verlOPO,
		"verl compute_gpg_outcome_advantage":                          verlGPG,
		"verl compute_reinforce_plus_plus_outcome_advantage":          verlReinforcePlusPlus,
		"verl compute_remax_outcome_advantage":                        verlReMax,
		"verl compute_optimal_token_baseline_advantage":               verlTokenBaseline,
		trlGRPO: trlGroups,
		trlRLOO: trlLeaveOneOut,
	},
	faults: groupAdvantagesFaults,
}

// outcomeBatch is the inputs of an estimator of verl.
type outcomeBatch struct {
	rows, cols int
	reward     []float64 // of each token
	score      []float64 // of each row
	mask       []bool
	group      []int
}

func readOutcome(c *call) *outcomeBatch {
	b := new(outcomeBatch)
	b.reward, b.rows, b.cols = c.grid("token_level_rewards")
	b.mask = c.mask("response_mask", b.rows, b.cols)
	uid := uids(c, b.rows)
	if c.ok() {
		b.score, b.group = rl.RowSums(nil, b.reward, nil, b.rows, b.cols), rl.GroupUIDs(uid)
	}
	return b
}

// uids returns the prompt of each row as text. The vectorised GRPO of verl reads ids as integers where all of them are, so
// that 1 and 01 are one prompt there.
func uids(c *call, rows int) []string {
	v := c.e.In["uid"]
	var list []any
	if v != nil {
		list, _ = v.Raw.([]any)
	}
	if len(list) != rows {
		c.malformed("input uid is no list of %d ids", rows)
		return nil
	}
	uid, whole := make([]string, rows), make([]string, rows)
	integers := c.e.Function == "compute_grpo_vectorized_outcome_advantage"
	for i, item := range list {
		switch id := item.(type) {
		case string:
			n, err := strconv.ParseInt(strings.TrimSpace(id), 10, 64)
			integers = integers && err == nil
			uid[i], whole[i] = "text "+id, strconv.FormatInt(n, 10)
		case float64:
			uid[i] = "number " + strconv.FormatFloat(id, 'g', -1, 64)
			whole[i] = strconv.FormatFloat(id, 'f', -1, 64)
		default:
			c.malformed("input uid: item %d is neither text nor number", i)
			return uid
		}
	}
	if integers {
		return whole
	}
	return uid
}

// spread returns the advantage of each row at the row's true cells, and at the others its product with 0: verl multiplies by
// the mask, so that an advantage that is no number shows there, too.
func (b *outcomeBatch) spread(adv []float64) []float64 {
	if adv == nil {
		return nil
	}
	x := rl.Broadcast(nil, adv, b.mask, b.rows, b.cols)
	for k, m := range b.mask {
		if !m {
			x[k] = 0 * adv[k/b.cols]
		}
	}
	return x
}

// outcome is an estimator of verl by its name in adv_estimator: how it centres and scales groups, and the whitening after it.
func (c *call) outcome(name string) (rl.GroupOptions, rl.WhitenOptions) {
	given := native{{Name: "adv_estimator", Value: name}}
	if _, says := c.e.Options["norm_adv_by_std_in_grpo"]; says {
		given.set("norm_adv_by_std_in_grpo", c.flag("norm_adv_by_std_in_grpo"))
	}
	given.number(c, "epsilon", "adv.eps")
	o := c.conventions(verlGRPOProfile, given)
	g := o.Group()
	var w rl.WhitenOptions
	if o.Word("whiten.scope") != "" {
		w = o.Whiten(rl.ScopeGlobal)
		w.Remask = o.Flag("whiten.remask")
		w.Var.Empty, w.Var.Single = rl.EmptyError, rl.SingleError
	}
	c.said(o)
	return g, w
}

// loneLeak returns the advantages of o with those of groups of one divided by 1 + ε as a float32, which is what verl's
// tensor(1.0) + ε is.
func (b *outcomeBatch) loneLeak(adv []float64, o rl.GroupOptions) []float64 {
	if o.Scale == rl.ScaleNone {
		return adv
	}
	size := make([]int, b.rows)
	for _, g := range b.group {
		size[g]++
	}
	leaked := append([]float64{}, adv...)
	for i, g := range b.group {
		if size[g] == 1 {
			leaked[i] = b.score[i] / float64(float32(1+o.Eps))
		}
	}
	return leaked
}

func verlGRPO(c *call) []answer {
	b := readOutcome(c)
	o, _ := c.outcome("grpo")
	if !c.ok() {
		return nil
	}
	adv, err := rl.GroupAdvantage(nil, b.score, b.group, o)
	if err != nil {
		return []answer{refused("advantages", nil, err)}
	}
	return []answer{leaking("advantages", b.spread(adv), b.spread(b.loneLeak(adv, o)), LeakLone)}
}

func verlPassK(c *call) []answer {
	b := readOutcome(c)
	o, _ := c.outcome("grpo_passk")
	if !c.ok() {
		return nil
	}
	adv, err := rl.PassKAdvantage(nil, b.score, b.group, o.Scale == rl.ScaleGroupStd, o.Eps)
	return []answer{refused("advantages", b.spread(adv), err)}
}

// verlWhitenedGroups is GDPO with one reward, and REINFORCE++ with a baseline, which does not divide by σ: group
// advantages whitened over all tokens.
func verlWhitenedGroups(c *call) []answer {
	b := readOutcome(c)
	o, w := c.outcome("reinforce_plus_plus_baseline")
	if c.e.Function == "compute_gdpo_outcome_advantage" { // for which there is no option
		o, _ = c.outcome("grpo")
	}
	if !c.ok() {
		return nil
	}
	adv, err := rl.GroupAdvantage(nil, b.score, b.group, o)
	if err != nil {
		return []answer{refused("advantages", nil, err)}
	}
	got, err := rl.Whiten(nil, b.spread(adv), b.mask, b.rows, b.cols, w)
	if err != nil {
		return []answer{refused("advantages", nil, err)}
	}
	leaked, err := rl.Whiten(nil, b.spread(b.loneLeak(adv, o)), b.mask, b.rows, b.cols, w)
	if err != nil {
		return []answer{refused("advantages", nil, err)}
	}
	return []answer{leaking("advantages", got, leaked, LeakLone)}
}

// verlRLOO: a group of one keeps its reward, or gets 0 in the vectorised form.
func verlRLOO(c *call) []answer {
	b := readOutcome(c)
	name := strings.TrimSuffix(strings.TrimPrefix(c.e.Function, "compute_"), "_outcome_advantage")
	o, _ := c.outcome(name)
	if !c.ok() {
		return nil
	}
	adv, err := rl.GroupAdvantage(nil, b.score, b.group, o)
	return []answer{refused("advantages", b.spread(adv), err)}
}

func verlOPO(c *call) []answer {
	b := readOutcome(c)
	if !c.ok() {
		return nil
	}
	length := make([]float64, b.rows)
	for k, m := range b.mask {
		if m {
			length[k/b.cols]++
		}
	}
	return []answer{plain("advantages", b.spread(rl.OPOAdvantage(nil, b.score, length, b.group))...)}
}

// verlGPG scales by N/N₊, a quotient of two integers.
func verlGPG(c *call) []answer {
	b := readOutcome(c)
	norm := c.value("f_norm")
	if !c.ok() {
		return nil
	}
	adv := rl.GPGAdvantage(nil, b.score, b.group, norm)
	nonzero := 0
	for _, s := range b.score {
		if s != 0 {
			nonzero++
		}
	}
	n, some := float64(b.rows), float64(max(nonzero, 1))
	leaked := make([]float64, len(adv))
	for i, a := range adv {
		leaked[i] = a * (float64(float32(n)/float32(some)) / (n / some))
	}
	return []answer{leaking("advantages", b.spread(adv), b.spread(leaked), LeakQuotient)}
}

func verlReinforcePlusPlus(c *call) []answer {
	b := readOutcome(c)
	_, w := c.outcome("reinforce_plus_plus")
	o := c.recursion(verlPPOProfile, native{{Name: "gamma", Value: c.value("gamma")}})
	if !c.ok() {
		return nil
	}
	adv, ret, err := rl.ReinforcePlusPlus(nil, nil, b.reward, b.mask, b.rows, b.cols, rl.ReturnToGo, o.Gamma, o.Hole, w)
	return []answer{{output: "returns", got: ret, err: err, only: b.mask}, refused("advantages", adv, err)}
}

func verlReMax(c *call) []answer {
	b := readOutcome(c)
	baseline := c.shaped("reward_baselines", b.rows)
	if !c.ok() {
		return nil
	}
	adv, ret := rl.ReMaxAdvantage(nil, nil, b.reward, baseline, b.mask, b.rows, b.cols)
	return []answer{plain("returns", ret...), plain("advantages", adv...)}
}

func verlTokenBaseline(c *call) []answer {
	b := readOutcome(c)
	old, squares := c.shaped("old_log_probs", b.rows, b.cols), c.shaped("sum_pi_squared", b.rows, b.cols)
	if !c.flag("handle_zero_tail") {
		c.undetermined("handle_zero_tail false")
	}
	if !c.ok() {
		return nil
	}
	return []answer{plain("advantages", rl.OptimalTokenBaseline(nil, b.reward, old, squares, nil, b.mask, b.group, b.rows, b.cols, 1e-8)...)}
}

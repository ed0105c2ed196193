package trainer

import (
	"math"
	"math/rand/v2"
	"strconv"

	"plumbline/verify/convention"
)

// Complete returns the options of a profile with a legal value for every option that the profile leaves open, and with
// numbers that a user sets, such as γ, λ, β and the clip bounds, drawn anew half of the time. The origin of what was drawn is
// "run".
func Complete(p *convention.Profile, r *rand.Rand) *convention.Set {
	c := &completion{Set: convention.FromProfile(p), rand: r}
	c.numbers()
	c.dependent(p)
	for _, o := range convention.Options() {
		if len(o.Stages) == 0 || c.Value(o.Name).Kind() != convention.Unknown {
			continue
		}
		if values := c.Among(o.Name); len(values) > 0 {
			c.Set = c.With(o.Name, values[r.IntN(len(values))], "run")
		}
	}
	c.agree()
	c.put("align", "response_only") // batches are read
	if (p.Framework == "TRL" || p.Framework == "Liger-Kernel") && c.is("adv.kind", "group") {
		c.Set = c.WithFact("steps_per_generation", 1.0)
	}
	return c.Set
}

// Vary returns a complete set with another loss.kind, adv.kind, agg.kind or ratio.level, and with values for the options that only this kind reads. It
// panics if it knows no such kind.
func Vary(s *convention.Set, option, kind string, r *rand.Rand) *convention.Set {
	c := &completion{Set: s, rand: r}
	c.put(option, kind)
	switch option {
	case "loss.kind":
		c.lossKind(kind)
	case "adv.kind":
		c.advKind(kind)
	case "ratio.level":
		c.put("ratio.grad", "row")
	case "agg.kind":
		c.put("agg.denominator", c.one("micro", "rank", "global"))
		c.put("agg.div_batch", c.one("true", "false"))
		c.put("agg.div_ga", c.one("true", "false"))
		c.sequences()
	default:
		panic("trainer: options of no kind: " + option)
	}
	return c.Set
}

type completion struct {
	*convention.Set
	rand *rand.Rand
}

// put sets an option to a value as it is printed.
func (c *completion) put(option, text string) {
	v, err := convention.Parse(option, text)
	if err != nil {
		panic("trainer: " + err.Error())
	}
	c.Set = c.With(option, v, "run")
}

// between sets an option to a number with three significant digits.
func (c *completion) between(option string, lo, hi float64) {
	x := lo + float64((hi-lo)*c.rand.Float64())
	scale := math.Pow(10, math.Floor(math.Log10(x))-2)
	c.put(option, strconv.FormatFloat(math.Round(x/scale)*scale, 'g', 3, 64))
}

func (c *completion) coin() bool { return c.rand.IntN(2) == 0 }

func (c *completion) one(of ...string) string { return of[c.rand.IntN(len(of))] }

func (c *completion) unknown(option string) bool {
	return c.Value(option).Kind() == convention.Unknown
}

func (c *completion) is(option, value string) bool { return c.Value(option).String() == value }

// numbers draws what users set in every run.
func (c *completion) numbers() {
	for _, n := range []struct {
		option string
		lo, hi float64
	}{
		{"gae.gamma", 0.9, 0.999}, {"gae.lambda", 0.8, 0.99}, {"clip.low", 0.1, 0.25}, {"clip.high", 0.1, 0.3},
		{"value.clip", 0.1, 0.5}, {"value.coef", 0.1, 1}, {"logp.temperature", 0.6, 1.2},
	} {
		v := c.Value(n.option)
		if v.Kind() == convention.Number && c.coin() || v.Kind() == convention.Unknown {
			c.between(n.option, n.lo, n.hi)
		}
	}
	if v := c.Value("kl.beta"); v.Kind() == convention.Number || v.Kind() == convention.Unknown {
		if c.coin() || v.Kind() == convention.Unknown || v.Num() == 0 {
			c.between("kl.beta", 0.02, 0.3)
		}
	}
}

// dependent sets what hangs together or has no list of values.
func (c *completion) dependent(p *convention.Profile) {
	set := func(option, value string) {
		if c.unknown(option) {
			c.put(option, value)
		}
	}
	set("kl.adaptive", "none")
	set("gae.lambda_policy", "none")
	set("tis.normalize", "false")
	if c.rand.IntN(4) > 0 {
		set("tis.gate", "ratio")
	}
	if p.Framework == "TRL" || p.Framework == "Liger-Kernel" || c.is("entropy.logits", "monte_carlo") {
		set("entropy.coef", "0") // TRL's bonus has an aggregation of its own
	} else if c.unknown("entropy.coef") && c.coin() {
		c.between("entropy.coef", 0.005, 0.05)
	}
	if c.rand.IntN(4) > 0 {
		set("reward.clip", "none")
		set("eos.rule", "none")
	}
	if c.unknown("eos.rule") {
		c.put("eos.rule", c.Among("eos.rule")[c.rand.IntN(len(c.Among("eos.rule")))].String())
	}
	set("eos.test", "eos_id")
	switch {
	case c.is("eos.rule", "none"):
		set("eos.penalty", "none")
	case (c.unknown("eos.penalty") || c.is("eos.penalty", "none")) && c.coin() || c.unknown("eos.penalty"):
		c.between("eos.penalty", 0.3, 1.5)
	}
	if !c.is("adv.scale", "group_std") {
		set("adv.multi", "sum_then_normalize")
	}
	set("adv.multi", c.one("sum_then_normalize", "sum_then_normalize", "normalize_then_sum"))
	set("whiten.constant_zero", "false")
	set("whiten.single", "zero")
}

// agree makes the options fit each other.
func (c *completion) agree() {
	if c.is("reward.clip", "before_baseline") || c.is("reward.clip", "after_baseline") {
		if k := c.Value("reward.clip_range").Kind(); k == convention.None || k == convention.Unknown || c.coin() {
			c.put("reward.clip_range", "-0.75,0.8")
		}
	}
	// Two options say whether engine weights multiply the KL term.
	switch under, applies := c.Value("kl.under_is_weight"), c.Value("tis.applies_to_kl"); {
	case under.Kind() != convention.Enum || applies.Kind() != convention.Bool:
	case c.Origin("kl.under_is_weight") == "run":
		c.put("kl.under_is_weight", map[bool]string{true: "inside", false: "outside"}[applies.Bool()])
	default:
		c.put("tis.applies_to_kl", strconv.FormatBool(under.Text() == "inside"))
	}
	if c.Value("tis.level").Known() && !c.is("tis.level", "none") {
		c.engineBounds()
	}
	if c.is("kl.place", "none") && !c.is("kl.beta", "–") {
		c.put("kl.beta", "0")
	}
}

// engineBounds draws bounds of engine weights that some of them pass.
func (c *completion) engineBounds() {
	switch {
	case c.is("tis.gate", "binary_kl"):
		c.between("tis.high", 0.005, 0.05)
	case c.is("tis.gate", "tv"):
		c.between("tis.high", 0.03, 0.15)
	case c.Origin("tis.high") == "run" || c.coin():
		c.between("tis.high", 1.05, 2)
	}
	if c.Value("tis.low").Kind() == convention.Unknown || c.Origin("tis.low") == "run" {
		c.put("tis.low", "0")
		if (c.is("tis.gate", "ratio") || c.is("tis.gate", "–")) && !c.is("tis.rule", "truncate_upper") && c.coin() {
			c.between("tis.low", 0.3, 0.9)
		}
	}
}

// lossKind sets what a loss needs.
func (c *completion) lossKind(kind string) {
	num := func(option string, lo, hi float64) { c.between(option, lo, hi) }
	token := func() {
		c.put("ratio.level", "token")
		if c.is("ratio.log_clamp", "–") || c.unknown("ratio.log_clamp") {
			c.put("ratio.log_clamp", "none")
		}
	}
	bounds := func() {
		num("clip.low", 0.1, 0.25)
		num("clip.high", 0.1, 0.3)
	}
	none := func(options ...string) {
		for _, o := range options {
			c.put(o, "none")
		}
	}
	none("clip.dual", "clip.delta")
	if !c.Value("ratio.old").Known() {
		c.put("ratio.old", "stored")
	}
	token()
	bounds()
	switch kind {
	case "ppo", "reinforce":
	case "cispo":
		if c.put("clip.high_is_absolute", c.one("true", "false")); c.is("clip.high_is_absolute", "true") {
			num("clip.high", 1.05, 1.5)
			none("clip.low")
		}
	case "gspo":
		c.put("ratio.level", "seq_mean")
		c.put("ratio.len_eps", c.one("0", "1e-8"))
		c.put("ratio.grad", c.one("row", "token"))
		num("clip.low", 0.02, 0.1)
		num("clip.high", 0.02, 0.1)
		c.put("agg.kind", "seq_mean_token_mean")
		c.sequences()
	case "gmpo":
		num("clip.low", 0.1, 0.3)
		num("clip.high", 0.1, 0.3)
		c.put("tis.level", "none")
		c.put("kl.place", "none")
		c.put("kl.beta", "0")
		c.put("agg.kind", "seq_mean_token_mean")
		c.put("agg.denominator", "micro")
		c.sequences()
		c.put("agg.empty_rows", "counted")
	case "sapo":
		num("sapo.tau_pos", 0.8, 1.2)
		num("sapo.tau_neg", 0.9, 1.3)
	case "luspo":
		c.put("agg.kind", "luspo")
		c.put("ratio.level", c.one("token", "seq_mean"))
	case "vespo":
		num("vespo.k_pos", 1, 2.5)
		num("vespo.lambda_pos", 1, 3)
		num("vespo.k_neg", 1, 3)
		num("vespo.lambda_neg", 1, 2.5)
		if level := c.Value("tis.level"); level.Known() && level.String() != "none" { // TRL refuses weights of whole rows here
			c.put("tis.level", "token")
			c.put("tis.rule", c.one("clamp", "zero_outside"))
		}
		c.put("kl.under_is_weight", "outside")
		c.put("tis.applies_to_kl", "false")
	case "dppo_tv", "dppo_kl":
		num("dppo.limit", 1.1, 3)
		num("clip.low", 0.01, 0.1)
		num("clip.high", 0.01, 0.1)
	case "dro":
		num("dro.beta", 0.1, 1)
	case "clip_cov":
		c.put("cov.lower", "0.3")
		c.put("cov.upper", "5")
		c.put("cov.fraction", "1")
	case "kl_cov":
		num("cov.fraction", 0.05, 0.2)
		num("cov.coef", 0.5, 1.5)
		none("clip.low", "clip.high")
	default:
		panic("trainer: no loss " + kind)
	}
}

// sequences sets what aggregations of rows read.
func (c *completion) sequences() {
	if !c.Value("agg.empty_rows").Known() {
		c.put("agg.empty_rows", c.one("excluded", "counted"))
	}
	if !c.Value("agg.len_eps").Known() {
		c.put("agg.len_eps", c.one("0", "1e-8"))
	}
}

// advKind sets what an estimator of advantages needs, and takes away what only others read.
func (c *completion) advKind(kind string) {
	tokens := kind == "gae" || kind == "rfpp" || kind == "remax" || kind == "optimal_token_baseline"
	if kind != "gae" {
		for _, o := range []string{"value.factor", "value.clip", "value.mask", "value.agg", "value.coef", "gae.value_mask", "gae.truncated_bootstrap"} {
			c.put(o, "–")
		}
	}
	if !c.is("kl.place", "loss") && !c.is("kl.place", "none") {
		c.put("kl.place", "loss")
		if tokens {
			c.put("kl.place", "token_reward")
		}
	}
	if !c.is("kl.beta", "0") && c.is("kl.grad", "–") {
		c.put("kl.grad", "naive")
	}
	if tokens {
		c.put("score.index", "last_response")
		c.put("rewards.whiten", "no")
		c.put("eos.rule", "none")
		c.put("adv.multi", "–")
		c.put("reward.clip", "none")
	}
	c.put("whiten.scope", "none")
	group := func() {
		c.put("adv.center", "mean")
		c.put("adv.scale", c.one("none", "group_std"))
		c.put("adv.ddof", "1")
		c.put("adv.eps", "1e-6")
		c.put("adv.zero_std", "divide_eps")
		c.put("adv.singleton", "raw")
		c.put("adv.group_by", "uid")
		c.put("adv.multi", "sum_then_normalize")
	}
	whiten := func() {
		c.put("whiten.scope", "global")
		c.put("whiten.mask", "response")
		c.put("whiten.ddof", c.one("0", "1"))
		c.put("whiten.eps_place", c.one("inside_sqrt", "floor_var"))
		c.put("whiten.eps", "1e-8")
		c.put("whiten.shift_mean", "true")
		c.put("whiten.remask", "true")
		c.put("whiten.single", "zero")
		c.put("whiten.constant_zero", "false")
	}
	switch kind {
	case "gae":
		c.between("gae.gamma", 0.9, 0.999)
		c.between("gae.lambda", 0.8, 0.99)
		c.put("gae.hole", c.one("carry", "zero_step", "cut", "cut_next", "none"))
		c.put("gae.value_mask", "response")
		if c.is("gae.hole", "none") { // the only rule with which a framework has one cell more
			c.put("gae.value_mask", c.one("response", "p1"))
		}
		c.put("gae.truncated_bootstrap", "none")
		c.put("gae.lambda_policy", "none")
		c.put("returns.before_whiten", c.one("true", "true", "false"))
		c.put("returns.of", "gae")
		c.put("returns.remask", c.one("false", "true", "masked_v"))
		c.put("value.factor", "0.5")
		c.put("value.mask", c.one("response", "p1", "none"))
		c.between("value.clip", 0.1, 0.5)
		c.between("value.coef", 0.1, 1)
		whiten()
	case "rfpp":
		c.between("gae.gamma", 0.9, 0.999)
		c.put("gae.hole", c.one("carry", "zero_step"))
		c.put("rfpp.mode", c.one("return_to_go", "return_to_go", "broadcast"))
		whiten()
	case "remax", "optimal_token_baseline", "raw":
		if kind == "optimal_token_baseline" {
			c.put("adv.group_by", "uid")
		}
	case "group", "opo", "gpg", "passk":
		group()
	case "rfpp_baseline":
		group()
		whiten()
	case "batch_baseline": // rows are whitened, which have no mask
		whiten()
		c.put("whiten.mask", "–")
		c.put("whiten.remask", "–")
		c.put("adv.center", "mean")
		c.put("adv.scale", "none")
	default:
		panic("trainer: no estimator " + kind)
	}
}

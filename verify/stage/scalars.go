package stage

import (
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// metric is a logged number with a known formula.
type metric struct {
	name      string
	framework string // that logs it under this name; "" for the names of dump.md, which any may use
	also      []alias
	title     string
	formula   string

	// generation marks numbers of a generation batch, which are logged at the step that uses it first.
	generation bool
	losses     []string // the kinds of loss that log it so; nil: all. Others of one release count otherwise by the same name
	rollout    bool     // of all rows of a rollout: judged where a step has them all (num_mini_batches = 1)
	batch      bool     // the same, and judged, too, where nobody says how many steps there are
	// of returns the metric of each range of rows, and the errors of the computation. The ranges are those of the files, or all rows
	// for every file if pooled.
	of     func(c *Case, rows []span) (x, e []float64)
	pooled bool
	among  func(c *Case, rows []span) [][]float64 // what else the name may mean; nil: nothing
	over   combine                                // how the numbers of the files become that of the step
	tokens bool                                   // a mean over the tokens of the mask
	ranks  overRanks                              // how TRL joins the numbers of a micro-batch that its ranks have

	preference bool // of pairs or labelled answers; other numbers are of dumps of tokens
}

// alias is another name of a number, in the log of one framework, or of any if that is "".
type alias struct{ framework, name string }

// span is a range of rows.
type span struct{ lo, hi int }

// combine is how numbers become one: those of micro-batches that of a step, those of rows that of a batch.
type combine uint8

const (
	mean combine = iota
	total
	smallest
	largest
)

// overRanks is how the numbers of several ranks become one; a number of each rank is the zero value.
type overRanks uint8

const (
	ownRank  overRanks = iota
	weighted           // a mean by what each rank's own mean counts
	least
	greatest
)

var metrics = []metric{
	{name: "loss", also: []alias{{"", "train/loss"}, {"verl", "actor/loss"}}, title: "logged loss", formula: "Σ of the losses of the micro-batches; with several ranks the mean of their sums", over: total, of: fileLoss},
	{name: "kl", also: []alias{{"trl", "train/kl"}, {"open-instruct", "objective/kl_avg"}}, tokens: true, ranks: weighted, title: "logged KL", formula: "mean over micro-batches of the mean of kl over the mask", of: maskedMean("kl")},
	{name: "entropy", also: []alias{{"trl", "train/entropy"}, {"cleanrl", "losses/entropy"}, {"open-instruct", "policy/entropy_avg"}}, tokens: true, ranks: weighted, title: "logged entropy", formula: "mean over micro-batches of the mean of entropy over the mask", of: maskedMean("entropy")},
	{name: "clip_frac", also: []alias{{"trl", "policy/clipfrac_avg"}, {"cleanrl", "losses/clipfrac"}, {"open-instruct", "policy/clipfrac_avg"}}, title: "logged clip fraction", formula: "share of the tokens in the mask that count as clipped (metric.clip_frac)", of: clipShare(anySign, "")},
	{name: "clip_fraction", also: []alias{{"", "clipfrac"}, {"", "pg_clipfrac"}, {"", "pg_clip_frac"}, {"", "policy_clip_frac"}, {"", "policy_clipfrac"}, {"", "train/clipfrac"}, {"", "train/clip_frac"}}, title: "logged clip fraction", formula: "share of the tokens in the mask with −A·clip(ρ) > −A·ρ, or with ρ beyond the bounds", losses: []string{"ppo", "gspo", "cispo"}, of: clipShare(anySign, "binding"), among: clipShares},
	{name: "approx_kl", also: []alias{{"trl", "policy/approxkl_avg"}, {"cleanrl", "losses/approx_kl"}}, title: "logged estimate of KL(old‖new)", formula: "mean over the mask of k3 (CleanRL), or of k2 (OpenAI; TRL PPO, which also divides by the padding), of logp_old − logp_new", of: approxKL},
	{name: "ppo_kl", also: []alias{{"cleanrl", "losses/old_approx_kl"}, {"cleanrl", "old_approx_kl"}}, title: "logged mean of logp_old − logp_new", formula: "mean over the mask of logp_old − logp_new", of: updateKL},
	{name: "pg_loss", also: []alias{{"verl", "actor/pg_loss"}, {"cleanrl", "losses/policy_loss"}, {"cleanrl", "policy_loss"}}, title: "logged policy loss", formula: "Σ of the policy losses of the micro-batches", over: total, of: fileTerm("pg_loss")},
	{name: "kl_loss", title: "logged KL loss", formula: "Σ of the KL losses of the micro-batches", over: total, of: fileTerm("kl_loss")},
	{name: "value_loss", also: []alias{{"verl", "critic/vf_loss"}, {"cleanrl", "losses/value_loss"}}, title: "logged value loss", formula: "Σ of the value losses of the micro-batches", over: total, of: fileTerm("value_loss")},
	{name: "ratio_max", title: "largest ratio", formula: "largest exp(logp_new − logp_old) in the mask", over: largest, of: largestRatio},
	{name: "grad_norm", title: "norm of the gradient before clipping", formula: "√Σ g² over the tensors grad and grad/NAME", pooled: true, of: gradientNorm},

	{name: "completions/clipped_ratio", framework: "trl", title: "share of completions cut off by their length", formula: "share of rows without an EOS in the mask", generation: true, pooled: true, of: truncatedShare},
	{name: "clip_ratio/low_mean", framework: "trl", ranks: weighted, title: "share of tokens clipped from below", formula: "mean over micro-batches of the share of ρ < 1 − clip.low with A < 0", of: clipShare(negative, "binding")},
	{name: "clip_ratio/low_min", framework: "trl", ranks: least, title: "smallest share of the tokens of a row clipped from below", formula: "mean over micro-batches of the smallest share, over rows, of ρ < 1 − clip.low with A < 0", of: clipOfRow(negative, smallest)},
	{name: "clip_ratio/high_mean", framework: "trl", ranks: weighted, title: "share of tokens clipped from above", formula: "mean over micro-batches of the share of ρ > 1 + clip.high with A > 0", of: clipShare(positive, "binding")},
	{name: "clip_ratio/high_max", framework: "trl", ranks: greatest, title: "largest share of the tokens of a row clipped from above", formula: "mean over micro-batches of the largest share, over rows, of ρ > 1 + clip.high with A > 0", of: clipOfRow(positive, largest)},
	{name: "clip_ratio/region_mean", framework: "trl", ranks: weighted, title: "share of tokens clipped", formula: "mean over micro-batches of the share of tokens clipped from below or above", of: clipShare(anySign, "binding")},
	{name: "completions/mean_length", framework: "trl", title: "mean length of completions", formula: "mean over rows of Σ mask", generation: true, pooled: true, of: lengths(mean)},
	{name: "completions/min_length", framework: "trl", title: "length of the shortest completion", formula: "smallest Σ mask of a row", generation: true, pooled: true, of: lengths(smallest)},
	{name: "completions/max_length", framework: "trl", title: "length of the longest completion", formula: "largest Σ mask of a row", generation: true, pooled: true, of: lengths(largest)},
	{name: "objective/kl", framework: "trl", title: "logged KL of the responses", formula: "mean over the rows of a rollout of Σ kl over the mask", batch: true, pooled: true, of: rowSums("kl")},
	{name: "reward", framework: "trl", title: "mean reward", formula: "mean of scores over the generation batch", generation: true, pooled: true, of: meanScore},

	{name: "actor/pg_clipfrac", framework: "verl", title: "logged clip fraction", formula: "masked share of tokens with −A·clip(ρ) > −A·ρ; of ρ beyond the bounds under cispo, 0 under sapo; under gmpo of log-ratios beyond the bounds with A > 0", losses: []string{"ppo", "gspo", "cispo", "sapo", "gmpo"}, of: verlClipShare},
	{name: "actor/pg_clipfrac_lower", framework: "verl", title: "share of tokens on the dual clip", formula: "masked share of tokens with A < 0 and max(−A·ρ, −A·clip(ρ)) > −A·clip.dual; under gmpo of log-ratios beyond the bounds with A < 0", losses: []string{"ppo", "gspo", "cispo", "sapo", "gmpo"}, of: verlLowerShare},
	{name: "actor/ppo_kl", framework: "verl", title: "logged mean of logp_old − logp_new", formula: "mean over the mask of logp_old − logp_new within ratio.log_clamp; of its size under kl_cov", of: verlUpdateKL},
	{name: "actor/kl_loss", framework: "verl", title: "logged KL loss", formula: "Σ over the micro-batches of Agg(kl), by agg.kind and agg.denominator, as the loss adds it", over: total, of: fileKL},
	{name: "actor/entropy_loss", framework: "verl", title: "logged entropy term", formula: "Σ over the micro-batches of Agg(entropy), by agg.kind and agg.denominator, as the loss subtracts it", over: total, of: fileEntropy},
	{name: "actor/entropy", framework: "verl", title: "logged entropy", formula: "Σ over the micro-batches of Agg(entropy), by agg.kind and agg.denominator", over: total, of: fileEntropy},
	{name: "actor/reward_kl_penalty_coeff", framework: "verl", title: "logged coefficient of the KL in the rewards", formula: "β of token_rewards = score − β·kl, read off the rewards", rollout: true, of: loggedBeta},
	{name: "critic/advantages/mean", framework: "verl", title: "mean of the advantages", formula: "mean over the mask of advantages", rollout: true, pooled: true, of: maskedMean("advantages")},
	{name: "critic/advantages/max", framework: "verl", title: "largest advantage", formula: "largest advantage in the mask", rollout: true, pooled: true, of: extreme("advantages", largest)},
	{name: "critic/advantages/min", framework: "verl", title: "smallest advantage", formula: "smallest advantage in the mask", rollout: true, pooled: true, of: extreme("advantages", smallest)},
	{name: "critic/returns/mean", framework: "verl", title: "mean of the returns", formula: "mean over the mask of returns", rollout: true, pooled: true, of: maskedMean("returns")},
	{name: "critic/returns/max", framework: "verl", title: "largest return", formula: "largest return in the mask", rollout: true, pooled: true, of: extreme("returns", largest)},
	{name: "critic/returns/min", framework: "verl", title: "smallest return", formula: "smallest return in the mask", rollout: true, pooled: true, of: extreme("returns", smallest)},
	{name: "critic/values/mean", framework: "verl", title: "mean of the values", formula: "mean over the mask of values", rollout: true, pooled: true, of: maskedMean("values")},
	{name: "critic/values/max", framework: "verl", title: "largest value", formula: "largest value in the mask", rollout: true, pooled: true, of: extreme("values", largest)},
	{name: "critic/values/min", framework: "verl", title: "smallest value", formula: "smallest value in the mask", rollout: true, pooled: true, of: extreme("values", smallest)},
	{name: "ppo_clip_ratio", framework: "openrlhf", title: "logged clip fraction", formula: "masked share of tokens with −A·clip(ρ) > −A·ρ", of: clipShare(anySign, "binding")},
}

func scalarChecks() []*Check {
	var list []*Check
	all := allMetrics()
	for i := range all {
		m := &all[i]
		list = append(list, &Check{
			ID: m.id(), Stage: convention.Scalars, Output: "scalars/" + m.name,
			Title: m.title, Formula: m.formula,
			Source:  "V23 (trl#3032, trl#6380, verl#2259, OpenRLHF feeb0283)",
			Fix:     "compare mask, reduction over micro-batches and formula with what the log is read as",
			Applies: m.applies,
			Predict: m.predict,
		})
	}
	return list
}

func allMetrics() []metric { return slices.Concat(metrics, batchMetrics, preferenceMetrics) }

// ReadsScalar returns the check that reads a number that a framework logs by a name, "" if there is none.
func ReadsScalar(framework, name string) string {
	framework = strings.ToLower(framework)
	for _, m := range allMetrics() {
		if _, ok := m.logged(&dump.FileInfo{Scalars: []dump.Scalar{{Name: name}}}, framework); ok && m.isOf(framework) {
			return m.id()
		}
	}
	return ""
}

func (m *metric) id() string {
	return "scalars/" + strings.NewReplacer("/", "_", " ", "_").Replace(m.name)
}

// isOf reports whether a framework, in small letters, gives the name of m the meaning of m.
func (m *metric) isOf(framework string) bool {
	switch m.framework {
	case ownLoop:
		return !slices.Contains(dictionaries, framework)
	case "":
		return !slices.Contains(otherMeaning[m.name], framework)
	}
	return m.framework == framework
}

// logged returns the number of a file, under the name of the metric or, if that is not there, under another one of the framework.
func (m *metric) logged(f *dump.FileInfo, framework string) (x float64, ok bool) {
	for _, s := range f.Scalars {
		switch {
		case s.Name == m.name:
			return s.Value, true
		case slices.ContainsFunc(m.also, func(a alias) bool { return a.name == s.Name && (a.framework == "" || a.framework == framework) }):
			x, ok = s.Value, true
		}
	}
	return x, ok
}

// frameworks that give other meanings to the names of dump.md.
var otherMeaning = map[string][]string{"kl": {"openrlhf", "verl"}, "approx_kl": {"verl", "openrlhf"}}

func (m *metric) applies(c *Case) bool {
	name := strings.ToLower(c.B.Meta.Framework)
	if !m.isOf(name) || m.preference && !c.preference() {
		return false
	}
	if m.name == "grad_norm" && !slices.ContainsFunc(c.B.Names(), isGradient) {
		return false // nobody dumps the gradient of every parameter by default
	}
	if kind := c.Set.Value("loss.kind"); m.losses != nil && kind.Kind() == convention.Enum && !slices.Contains(m.losses, kind.Text()) {
		return false
	}
	if m.rollout && (c.FactOr("num_mini_batches", 0) != 1 || !c.complete()) {
		return false
	}
	if m.batch && c.FactOr("num_mini_batches", 1) != 1 {
		return false
	}
	for i := range c.B.Files {
		f := &c.B.Files[i]
		if averaged := slices.ContainsFunc(f.Scalars, func(s dump.Scalar) bool { return strings.HasSuffix(s.Name, "_avg") }); averaged && name == "trl" && c.B.Meta.ScalarsScope != "micro_batch" {
			continue // PPOTrainer logs means over the mini-batches and epochs of a rollout under these names
		}
		if _, ok := m.logged(f, name); ok {
			return true
		}
	}
	return false
}

func (m *metric) predict(c *Case) *Prediction {
	if c.preference() && !m.preference && m.name != "loss" {
		return nil
	}
	b := c.B
	step := b.Meta.ScalarsScope == "optimizer_step"
	if b.Meta.ScalarsScope == "" && !(c.complete() && len(b.Files) == 1) && !(b.Meta.MicroBatches == 0 && len(b.Files) == 1) {
		return c.lacks("scalars_scope")
	}
	if step && len(b.Missing) > 0 {
		return c.lacks("the files missing from the step (" + b.Missing[0] + ")")
	}
	if step && m.name != "loss" && !m.pooled && c.worldSize() > 1 {
		return c.lacks("the reduction of " + m.name + " over ranks")
	}
	if m.generation && !c.wholeGeneration() {
		return c.lacks("the rest of the generation batch")
	}
	n := len(b.Files)
	p := &Prediction{Want: make([]float64, n), Bound: make([]float64, n), Judge: make([]bool, n), Got: make([]float64, n), GotUnit: min(c.Unit, tol.U32)}
	rows, own := make([]span, n), make([]span, n)
	for f, file := range b.Files {
		own[f] = span{file.Lo, file.Hi}
		if rows[f] = own[f]; m.pooled {
			rows[f] = span{0, b.Rows}
		}
	}
	x, e := m.of(c, rows)
	if !c.OK() {
		return nil
	}
	alone := slices.Clone(x)
	var other, otherErr []float64                         // what else the name may stand for, with its own errors: those of one token are more than those of many
	if m.pooled && b.Meta.ScalarsScope == "micro_batch" { // a writer may have taken it of its own rows
		other, otherErr = m.of(c, own)
	}
	if step && !m.pooled {
		m.combine(c, x, e)
	}
	framework := strings.ToLower(b.Meta.Framework)
	if !step && m.ranks != ownRank && c.worldSize() > 1 && (framework == "trl" || framework == "" && m.preference) { // a hook may log it before the ranks are joined
		other, otherErr = slices.Clone(x), slices.Clone(e)
		m.joinRanks(c, x, e)
	}
	ofItsOwn := m.framework == "verl" || !slices.Contains(dictionaries, framework)
	if !step && ofItsOwn && m.over == total && c.divides() { // what is back-propagated is divided by the accumulation steps, and what is logged need not be
		other, otherErr = times(x, c.accumulation()), times(e, c.accumulation())
	}
	p.Alt = slices.Clone(other)
	for f := range b.Files {
		p.Want[f], p.Bound[f] = x[f], e[f]
		if got, ok := m.logged(&b.Files[f], framework); ok {
			p.Got[f], p.Judge[f] = got, true
			if other != nil && math.Abs(other[f]-got)-otherErr[f] < math.Abs(x[f]-got)-e[f] { // a token on a bound makes a share uncertain
				p.Want[f], p.Bound[f] = other[f], otherErr[f]
			}
			if m.name == "loss" && math.IsNaN(x[f]) { // the HF trainer leaves it out of its log
				p.Judge[f] = false
			}
			if m.name == "loss" && fourDecimals(got) { // the HF trainer rounds the loss that it logs
				p.Bound[f] += 0.5e-4
			}
		}
		p.settle(f, math.MaxFloat64)
	}
	if m.among != nil {
		m.nearest(c, p, rows)
	}
	nobodys := framework == "" || framework == "torch" || framework == "pytorch" // a library has no log of its own
	if m.tokens && !slices.Contains(dictionaries, framework) {                   // every framework means another of them by the name
		p.closest(c.anyMeans(m.name, step))
	}
	if m.name == "approx_kl" {
		p.Alt = m.alternative(c, rows, step)
		if !slices.Contains(dictionaries, framework) {
			m.spinningUp(c, p, rows, step)
		}
	}
	if m.name == "loss" && step && framework != "trl" {
		p.Alt = times(p.Want, 1/max(c.accumulation(), 1))
	}
	sampled := nobodys && Updates(c.Set) > 1 || framework == "trl" && c.EnumOr("kl.place", "") == "sequence_reward_before_baseline"
	if m.name == "kl" && sampled {
		m.sampled(c, p)
	}
	p.Scale = max(rms(p.Want, func(int) bool { return true }), p.size(m, c))
	p.Terms = func(f int) []Term {
		return []Term{{"files of the step", float64(n)}, {"of this file alone", alone[f]}}
	}
	return p
}

// nearest makes what else the name may mean, of the rows of each file or of all of them, an alternative: that which is nearest to what was
// logged.
func (m *metric) nearest(c *Case, p *Prediction, own []span) {
	whole := slices.Repeat([]span{{0, c.B.Rows}}, len(own))
	pooled, _ := m.of(c, whole)
	list := slices.Concat([][]float64{pooled}, m.among(c, own), m.among(c, whole))
	p.closest(list)
}

// closest makes that of several numbers of each file an alternative that is nearest to what was logged.
func (p *Prediction) closest(list [][]float64) {
	if p.Alt != nil {
		list = append(list, p.Alt)
	}
	p.Alt = slices.Repeat([]float64{math.NaN()}, len(p.Want))
	for _, x := range list {
		for f := range x {
			if !(math.Abs(x[f]-p.Got[f]) >= math.Abs(p.Alt[f]-p.Got[f])) {
				p.Alt[f] = x[f]
			}
		}
	}
}

// size is below what an error in a metric does not matter: that of the terms for a loss that cancels, 1 for a share or a KL.
func (p *Prediction) size(m *metric, c *Case) float64 {
	if m.name == "loss" {
		return c.lossSize()
	}
	return 1
}

// sampled takes the KL of TRL's RLOO for what it may be, too: it is in the rewards, and logged once when these are, of the tokens of a
// generation batch on all ranks. Where a step has not all rows of that batch, another number than that of its own is not judged.
func (m *metric) sampled(c *Case, p *Prediction) {
	if c.wholeGeneration() {
		whole, _ := m.of(c, slices.Repeat([]span{{0, c.B.Rows}}, len(p.Want)))
		p.closest([][]float64{whole})
		return
	}
	for f, want := range p.Want {
		off := math.Abs(p.Got[f] - want)
		if p.Alt != nil {
			off = min(off, math.Abs(p.Got[f]-p.Alt[f]))
		}
		if p.Judge[f] && off > p.Bound[f]+tol.Storage(want, p.GotUnit, tol.Eta32) {
			note(&c.Absent, "the rest of the generation batch")
			return
		}
	}
}

// joinRanks puts what TRL logs of all ranks in place of the numbers of the files of a micro-batch: the least, the greatest, or the mean by
// the n_k tokens that a rank counts, rows where a ratio of the sequence has one value a row:
//
//	x = Σ_k n_k·x_k / Σ_k n_k   with an error of Σ_k n_k·e_k / Σ_k n_k + (ranks + 2)·2u·Σ_k n_k·|x_k| / Σ_k n_k
//
// So does TRL from 1.9 on (trl#6380; global_masked_mean of 1.16); before, the mean was that of the ranks' means. A micro-batch of which a
// rank is missing keeps the numbers of its files.
func (m *metric) joinRanks(c *Case, x, e []float64) {
	u := c.Unit + tol.U64
	ranks := int(c.worldSize())
	for _, first := range c.B.Files {
		if first.Rank != 0 {
			continue
		}
		var same []int
		var n, sum, err, size float64
		low, high, extremeErr := math.Inf(1), math.Inf(-1), 0.0
		for f, file := range c.B.Files {
			if file.Step != first.Step || file.MicroBatch != first.MicroBatch {
				continue
			}
			same = append(same, f)
			if !math.IsNaN(x[f]) { // nanmin and nanmax
				low, high, extremeErr = min(low, x[f]), max(high, x[f]), max(extremeErr, e[f])
			}
			if by := m.counts(c, &file); by > 0 { // the mean of no tokens is no number
				n += by
				sum += by * x[f]
				err += by * e[f]
				size += by * math.Abs(x[f])
			}
		}
		if len(same) != ranks || n == 0 {
			continue
		}
		for _, f := range same {
			switch m.ranks {
			case least:
				x[f], e[f] = low, extremeErr
			case greatest:
				x[f], e[f] = high, extremeErr
			default:
				x[f], e[f] = sum/n, (err+float64(ranks+2)*2*u*size)/n
			}
		}
	}
}

// counts returns the number of values that the mean of a file is of.
func (m *metric) counts(c *Case, file *dump.FileInfo) float64 {
	if m.preference || !m.tokens && c.EnumOr("ratio.level", "token") != "token" {
		return float64(file.Hi - file.Lo)
	}
	var tokens float64
	for _, in := range c.lossMask()[file.Lo*c.B.Cols : file.Hi*c.B.Cols] {
		if in {
			tokens++
		}
	}
	return tokens
}

// fourDecimals reports whether x is a number of at most four decimals.
func fourDecimals(x float64) bool { return math.Round(x*1e4)/1e4 == x }

// wholeGeneration reports whether the rows of the step are those of a generation batch.
func (c *Case) wholeGeneration() bool {
	if size := c.FactOr("generation_batch_size", math.NaN()); !math.IsNaN(size) {
		return size == float64(c.B.Rows)
	}
	return c.complete() && c.FactOr("steps_per_generation", 0) == float64(c.B.Meta.MicroBatches)
}

// combine puts the number of the step in place of those of its files.
func (m *metric) combine(c *Case, x, e []float64) {
	var all, err, n float64
	u := c.Unit + tol.U64
	var size float64
	trl := strings.ToLower(c.B.Meta.Framework) == "trl"
	for f := range x {
		if trl && math.IsNaN(x[f]) { // its log leaves them out
			continue
		}
		n++
		all += x[f]
		err += e[f]
		size += math.Abs(x[f])
	}
	err += foldError(int(n), c.Unit) * size
	by := n
	if m.over == total {
		by = c.worldSize()
	}
	if n == 0 {
		by = math.NaN()
	}
	if m.over == largest || m.over == smallest {
		best := 0
		for f := range x {
			if m.over == largest && x[f] > x[best] || m.over == smallest && x[f] < x[best] {
				best = f
			}
		}
		all, err, by = x[best], slices.Max(e), 1
	}
	all, err = all/by, err/by+2*u*math.Abs(all/by)
	for f := range x {
		x[f], e[f] = all, err
	}
}

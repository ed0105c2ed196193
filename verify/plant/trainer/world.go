package trainer

import (
	"math"
	"slices"

	"plumbline/internal/rng"
)

// The policies, whose logits are those of the old one and noise.
const (
	oldPolicy = iota
	newPolicy
	genPolicy
	refPolicy
	policies
)

// span is a file: a micro-batch of a rank and its rows.
type span struct{ rank, micro, lo, hi int }

// world is what happened before the trainer computed anything: prompts, sampled tokens, scores, values, and the logits of the
// policies. It is the same for a healthy and a faulty trainer.
type world struct {
	rows, cols, vocab, width int // width of the padded prompts
	spans                    []span
	group                    []int // of every row
	prompt                   [][]int
	ids                      []int // response tokens, rows×cols, pad outside
	length                   []int // tokens of the response, EOS and tool output included
	eosAt                    []int // column of EOS, −1 if the response was cut off
	dropped                  []bool
	hole                     []bool // tool output
	context                  []int  // of every cell: the first cell with the same prompt and tokens before it
	maxLength                int    // of a response
	eos, pad                 int
	functions                int
	scores                   []float64 // rows×functions
	weights                  []float64 // of the functions
	values, newValues        []float64 // rows×cols
	fill                     float64   // what log-probs hold outside the response; NaN: what the model says there
	broadcast                bool      // advantages of a sequence are dumped per token
	includesKL, stepScope    bool
	generations              int // optimiser steps that share a generation batch
	otherTokens              int // tokens of the other steps
	outlier                  int // cell whose token the policy, but not the reference, finds impossible; −1: none
	outlierBias              float64

	noise   [policies]float64
	streams [policies]rng.Stream
	base    rng.Stream
	twin    []int // row whose logits a row has, where a bug makes rows equal; nil: its own
	seed    uint64
}

func newWorld(c Config, o settings, data string) *world {
	w := &world{rows: c.Rows, cols: c.Cols, seed: c.Seed, outlier: -1}
	shape := &drawn{stream: rng.New(c.Seed, drawShape)}
	w.vocab, w.width = 8+shape.below(25), 3+shape.below(6)
	w.eos, w.pad = 1, shape.below(2)
	w.fill = 0
	if o.framework == "TRL" && o.kind("gae") && shape.chance(0.5) {
		w.fill = 1 // INVALID_LOGPROB
	}
	if shape.chance(0.5) || data == "KL-PADS-IN-RETURNS" {
		w.fill = math.NaN()
	}
	if o.agg == "luspo" {
		w.fill = 0
	}
	if o.maskAll {
		w.fill = math.NaN()
	}
	w.broadcast, w.includesKL = shape.chance(0.5), shape.chance(0.5)
	w.stepScope = shape.chance(0.3)
	switch data {
	case "METRIC-LAST-MICRO", "METRIC-MAX-AVERAGED", "METRIC-LOCAL-OVER-GLOBAL":
		w.stepScope = true
	}
	w.generations = 1
	if _, known := c.Set.Fact("steps_per_generation"); known && (shape.chance(0.25) || data == "AGG-NUM-ITEMS-GENERATION") {
		w.generations = 2
	}
	w.divide(c.Files, c.Ranks)
	w.assignGroups(c.Group, shape, !o.contiguous && shape.chance(0.5))
	w.cutLengths(o, shape, data)
	w.otherTokens = w.rows*w.cols/2 + shape.below(w.rows*w.cols/2+1)
	w.setNoise(c, o, data)
	w.dig(c.Holes && !o.maskAll, shape)
	w.sample(o)
	w.score(c, o, data)
	w.appraise(c)
	w.single(c, data)
	return w
}

// divide cuts the rows into files of ranks, the first ones a row longer where it does not come out even.
func (w *world) divide(files, ranks int) {
	n := min(files*ranks, w.rows)
	ranks = min(ranks, n)
	per := n / ranks
	n = per * ranks
	lo := 0
	for f := range n {
		hi := lo + w.rows/n
		if f < w.rows%n {
			hi++
		}
		w.spans = append(w.spans, span{f / per, f % per, lo, hi})
		lo = hi
	}
}

func (w *world) ranks() int  { return w.spans[len(w.spans)-1].rank + 1 }
func (w *world) micros() int { return len(w.spans) / w.ranks() }

func (w *world) assignGroups(size int, d *drawn, shuffle bool) {
	seen := map[string]bool{}
	var prompts [][]int
	for g := 0; g < w.rows/size; {
		p := make([]int, 2+d.below(w.width-1))
		key := ""
		for i := range p {
			p[i] = 2 + d.below(w.vocab-2)
			key += string(rune(p[i]))
		}
		if !seen[key] {
			seen[key] = true
			prompts = append(prompts, p)
			g++
		} else if d.chance(0.2) {
			w.width++ // more room where all short prompts are taken
		}
	}
	w.group = make([]int, w.rows)
	for r := range w.rows {
		w.group[r] = r / size
	}
	if shuffle {
		for i := w.rows - 1; i > 0; i-- {
			j := d.below(i + 1)
			w.group[i], w.group[j] = w.group[j], w.group[i]
		}
	}
	for _, g := range w.group {
		w.prompt = append(w.prompt, prompts[g])
	}
}

// cutLengths says how long responses are and how they end. With fixed lengths EOS may stand anywhere, and what follows it
// counts.
func (w *world) cutLengths(o settings, d *drawn, data string) {
	w.length, w.eosAt, w.dropped = make([]int, w.rows), make([]int, w.rows), make([]bool, w.rows)
	fixed := o.maskAll && o.kind("gae")
	cut := d.chance(0.5) && !o.bootstrap
	empty := d.chance(1. / 6)
	switch data {
	case "NAN-EMPTY-ROW", "AGG-COUNTS-MASKED", "MASK-TRUNCATED-KEPT":
		cut, empty = true, true
	case "EOS-PENALTY-MISSING", "EOS-INVERTED", "GAE-TRUNCATED-BOOTSTRAP", "METRIC-LOCAL-OVER-GLOBAL":
		cut = true
	}
	longest := d.below(w.rows)
	for r := range w.rows {
		n := 1 + d.below(w.cols)
		truncated := cut && d.chance(0.3)
		if r == longest || truncated || fixed {
			n = w.cols
		}
		w.length[r], w.eosAt[r] = n, n-1
		switch {
		case fixed && o.scoreIndex != "": // lm-human-preferences: 24 tokens, wherever EOS is
			if w.eosAt[r] = d.below(w.cols); d.chance(0.3) {
				w.eosAt[r] = -1
			}
		case truncated || cut && r == longest:
			w.eosAt[r] = -1
		}
	}
	w.maxLength = w.cols
	if !cut && !fixed && d.chance(0.7) {
		w.maxLength += d.below(2 * w.cols)
	}
	for _, s := range w.spans {
		if s.lo <= longest && longest < s.hi && s.hi-s.lo > 1 && cut && empty && !o.maskAll && o.kind("group") {
			w.dropTruncated(longest)
		}
	}
}

// dropTruncated masks the rows that were cut off, as TRL does under mask_truncated_completions; every file keeps a row that has ended.
func (w *world) dropTruncated(longest int) {
	for _, s := range w.spans {
		if !slices.ContainsFunc(w.eosAt[s.lo:s.hi], func(at int) bool { return at >= 0 }) {
			r := s.lo
			if r == longest && s.hi-s.lo > 1 {
				r++
			}
			w.eosAt[r] = w.length[r] - 1
		}
	}
	for r, at := range w.eosAt {
		w.dropped[r] = at < 0
	}
}

// setNoise says how far the policies are from the old one. Sequence ratios multiply it by the square root of the length.
func (w *world) setNoise(c Config, o settings, data string) {
	engine := []float64{0, 0.002, 0.02}[rng.New(w.seed, drawSpecial).Word(0)%3]
	w.noise = [policies]float64{0, 0.18, engine, 0.3}
	if o.tisLevel != "" && o.tisLevel != "none" {
		w.noise[genPolicy] = 0.2
	}
	n := math.Sqrt(float64(w.cols))
	if o.ratioLevel == "seq_sum" || o.loss == "vespo" || o.loss == "gmpo" {
		w.noise[newPolicy] /= n / 2
	}
	if o.tisLevel == "seq_sum" {
		w.noise[genPolicy] /= n / 2
	}
	if o.stopgrad {
		w.noise[newPolicy] = 0
	}
	if c.FirstStep {
		w.noise[newPolicy], w.noise[refPolicy] = 0, 0
	}
	w.base = rng.New(w.seed, drawBase)
	for p := range w.streams {
		w.streams[p] = rng.New(w.seed, drawLogits+uint64(p))
	}
}

// dig puts tool output between the policy's own tokens.
func (w *world) dig(holes bool, d *drawn) {
	w.hole = make([]bool, w.rows*w.cols)
	if !holes {
		return
	}
	for r := range w.rows {
		n := w.length[r]
		if n < 4 || d.chance(0.2) {
			continue
		}
		from := 1 + d.below(n-3)
		to := min(from+1+d.below(3), n-1)
		for t := from; t < to; t++ {
			w.hole[r*w.cols+t] = true
		}
	}
}

// logits stores the raw logits of a policy at a cell.
func (w *world) logits(z []float64, policy, cell int) { w.noisy(z, policy, cell, w.noise) }

// noisy stores the raw logits of a policy that is as far from the old one as noise says: a function of the tokens before. Cells after the grid
// are cells, too.
func (w *world) noisy(z []float64, policy, cell int, noise [policies]float64) {
	of := cell
	if cell < len(w.context) {
		of = w.context[cell]
	}
	for v := range z {
		i := uint64(of*w.vocab + v)
		z[v] = float64(1.6 * w.base.Normal(i))
		if noise[policy] > 0 {
			z[v] += float64(noise[policy] * w.streams[policy].Normal(i))
		}
		if v == 0 {
			z[v] -= 4
		}
	}
	if cell == w.outlier && policy != refPolicy {
		z[w.ids[cell]] -= w.outlierBias
	}
}

// score draws the rewards of the responses: right or wrong, graded, or continuous.
func (w *world) score(c Config, o settings, data string) {
	d := &drawn{stream: rng.New(w.seed, drawScores)}
	w.functions = 1
	if o.manyRewards {
		w.functions = c.Rewards
		if data == "REWARD-WEIGHTS-IGNORED" || data == "METRIC-REWARD-UNWEIGHTED" {
			w.functions = max(c.Rewards, 2)
		}
	}
	kind := d.below(3)
	scale, offset := 1., 0.
	switch data {
	case "SCORE-ZERO-MISSING":
		kind = 0
	case "ADV-ONE-PASS":
		kind, offset, scale = 2, 3000, 0.5
	case "REWARD-CLIP-MISSING":
		if kind = 2; !math.IsInf(o.rewardHigh, 1) {
			scale = 1.5 * o.rewardHigh
		}
	}
	for range w.functions {
		w.weights = append(w.weights, []float64{1, 0.5, 2, 0.3}[d.below(4)])
	}
	if w.functions == 1 {
		w.weights[0] = 1
	} else if w.weights[0] == 1 && w.weights[1] == 1 {
		w.weights[1] = 0.5
	}
	for range w.rows * w.functions {
		u := d.uniform()
		s := []float64{math.Floor(2 * u), math.Floor(5*u) / 4, float64(3*u) - 1.4}[kind]
		w.scores = append(w.scores, float64(scale*s)+offset)
	}
	if data == "ADV-LOO-ZERO-STD" {
		g := w.group[0]
		for r := range w.rows {
			if w.group[r] == g {
				for f := range w.functions {
					w.scores[r*w.functions+f] = 0
				}
			}
		}
		w.scores[0] = 1
	}
}

// appraise draws what the value head says at rollout and now: the same at the first update, but for rounding.
func (w *world) appraise(c Config) {
	moved := 0.3
	if c.FirstStep {
		moved = 1e-4
	}
	now := rng.New(w.seed, drawValues)
	w.values, w.newValues = make([]float64, w.rows*w.cols), make([]float64, w.rows*w.cols)
	for i := range w.values {
		of := w.context[i]
		w.values[i] = 0.2 + float64(0.4*now.Normal(uint64(2*of)))
		w.newValues[i] = w.values[i] + float64(moved*now.Normal(uint64(2*(of+len(w.values)))))
	}
}

// single picks the token that the policy finds impossible, where a bug needs one.
func (w *world) single(c Config, data string) {
	switch data {
	case "KL-CLAMP-MISSING":
		w.outlierBias = 30
	case "KL-GRAD-OVERFLOW":
		if w.outlierBias = 100; c.DType.Size() == 8 {
			w.outlierBias = 800
		}
	default:
		return
	}
	d := &drawn{stream: rng.New(w.seed, drawSpecial)}
	for range 1000 {
		r := d.below(w.rows)
		if cell := r*w.cols + d.below(w.length[r]); !w.hole[cell] && !w.dropped[r] {
			w.outlier = cell
			return
		}
	}
}

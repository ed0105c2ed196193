package dump

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// mostScanned bounds the steps that are looked at for the one that tells most.
const mostScanned = 64

// far is a |log-ratio| beyond which usual clip bounds act.
const far = 0.1

// content is the counts of what tells formulas apart, the most telling first: tokens whose ratio is far from 1, tokens whose ratio is not 1,
// tokens where policy and reference differ, rows of an advantage other than 0.
type content [4]int

// contentOf counts what a batch tells formulas apart by. The first update of a run has ratios of 1 and no KL, and most formulas give the
// same numbers there.
func contentOf(b *dump.Batch) (n content) {
	lp, old, ref := b.Token("logp_new"), b.Token("logp_old"), b.Token("logp_ref")
	for i, m := range b.Mask {
		if !m || lp == nil {
			continue
		}
		if old != nil {
			if d := math.Abs(lp[i] - old[i]); d > far {
				n[0]++
				n[1]++
			} else if d > 0 {
				n[1]++
			}
		}
		if ref != nil && lp[i] != ref[i] {
			n[2]++
		}
	}
	if t := b.Tensors["advantages"]; t != nil {
		for _, x := range t.Data {
			if x != 0 && !math.IsNaN(x) {
				n[3]++
			}
		}
	}
	return n
}

func (n content) more(than content) bool {
	for i := range n {
		if n[i] != than[i] {
			return n[i] > than[i]
		}
	}
	return false
}

// overview is what all steps of a run together tell where nothing is declared.
type overview struct {
	step         int                // that tells most formulas apart
	rewards      int                // in which policy and reference differ most when the rows are sampled
	values       int                // in which values have moved most
	any          bool               // there is such a step
	end          int                // the token that ends responses
	ends         bool               // it is known
	coefficients map[string]float64 // of the terms of the loss, by their options
	divisor      float64            // that it is divided by alone; 0: none
	rows         stage.RowSurrogate // what their gradients show of one ratio for a row
	scores       stage.GroupScores  // what their advantages show of what becomes of scores
	rollout      int                // steps whose advantages were normalised together
	constant     float64            // that a sum over tokens is divided by besides the rows; 0: none
	entropy      string             // the aggregation of the entropy bonus, where it has one of its own; else ""
	form         []stage.Change     // options of a loss that is all that says of its terms
	updates      int                // steps of the first rollout, whose rows come again in some of them; 0: none does, or the rollout does not end
	adapted      bool               // the engine has the weights of the reference at first, and others later
	generation   int                // steps whose tokens together, by their number, a sum over tokens is divided by; 0: none
	width        int                // padded, of every file; -1: they have several
	parts        int                // micro-batches of a step, the most
}

// scan reads the steps, many of them at most, once.
func (s *session) scan() *overview {
	if s.overview != nil {
		return s.overview
	}
	v := &overview{}
	s.overview = v
	if s.shown != byAdvantages {
		v.scores.Over = s.minis
	}
	torn := v.scores.Over > 1 && len(s.run.Steps()) > mostScanned // of rollouts that are not looked at as a whole
	var most content
	var losses stage.Losses
	var apart, moved float64
	disagree := false
	var first firstRollout
	declared := map[string]bool{}
	for _, step := range spread(s.run.Steps(), mostScanned) {
		b, err := s.run.Batch(s.ctx, step)
		if err != nil {
			break // the step is read once more, and the error is reported then
		}
		if x := distance(b, "logp_old", "logp_ref"); !v.any || x > apart {
			v.rewards, apart = step, x
		}
		if x := valuesTell(b); !v.any || x > moved {
			v.values, moved = step, x
		}
		if id, ok := stage.EndToken(b); ok && v.ends && id != v.end {
			disagree = true
		} else if ok {
			v.end, v.ends = id, true
		}
		if n := contentOf(b); !v.any || n.more(most) {
			v.step, v.any, most = step, true, n
		}
		for _, f := range b.Files {
			if v.width == 0 {
				v.width = f.Cols
			}
			if f.Cols != v.width {
				v.width = -1
			}
		}
		v.parts = max(v.parts, b.Meta.MicroBatches)
		first.add(b, s.set)
		losses.Add(b)
		v.rows.Add(b)
		if !torn {
			v.scores.Add(b)
		}
		for _, o := range b.Meta.Options {
			declared[o.Name] = true
		}
	}
	if disagree {
		v.ends = false
	}
	if len(s.run.Steps()) <= mostScanned {
		v.updates, v.adapted = first.rollout(), first.synced > 0
	}
	again := losses.Apart()
	if again {
		losses = stage.Losses{}
	}
	for _, step := range s.run.Steps()[:min(mostScanned, len(s.run.Steps()))] {
		if !again && !torn {
			break
		}
		b, err := s.run.Batch(s.ctx, step)
		if err != nil {
			break
		}
		if again {
			losses.Add(b)
		}
		if torn {
			v.scores.Add(b)
		}
	}
	if losses.Silent() {
		s.beneath(&losses)
	}
	v.coefficients, v.constant = losses.Coefficients(), losses.Constant()
	v.entropy, v.generation, v.form = losses.Entropy(), losses.Generation(), losses.Form()
	if v.constant == 0 {
		v.divisor = losses.Divisor()
	}
	for _, name := range slices.Sorted(maps.Keys(v.coefficients)) {
		if declared[name] {
			continue
		}
		s.say(fmt.Sprintf("%s, which nobody declares, is %.6g by the numbers of the run", name, v.coefficients[name]))
	}
	if v.rollout = v.scores.Rollout(); v.rollout > 1 {
		s.say(fmt.Sprintf("advantages are normalised over %d steps, which nobody declares, by their numbers", v.rollout))
	}
	if v.divisor > 0 {
		s.say(fmt.Sprintf("the losses are sums over tokens divided by %.6g, which nobody declares", v.divisor))
	}
	if v.generation > 0 && losses.Misdivided() == "" {
		s.say(fmt.Sprintf("the losses are divided by a share of the tokens of %s, as of one generation batch, which nobody declares", steps(v.generation, "step")))
	}
	if v.constant > 0 {
		s.say(fmt.Sprintf("the losses are sums over tokens divided by the rows and by %.6g, which nobody declares", v.constant))
	}
	return v
}

// firstRollout counts the steps of a run until rows come that no step had before, after some that one had. An engine that is declared to be some rollouts old has
// the weights of the start for one rollout more than that: where it leaves the reference they end.
type firstRollout struct {
	seen    map[string]bool
	steps   int
	again   bool
	updates int

	noise  float64 // between engine and reference in the first step
	lag    float64 // rollouts that the engine is declared to be old at most
	synced int     // steps before the engine left the reference; 0: it has not
}

func (f *firstRollout) add(b *dump.Batch, said *convention.Set) {
	if f.seen == nil {
		f.seen = map[string]bool{}
	}
	fresh, known := 0, 0
	for _, key := range rowKeys(b) {
		switch {
		case key == "":
		case f.seen[key]:
			known++
		default:
			fresh++
			f.seen[key] = true
		}
	}
	if f.updates == 0 && f.again && fresh > known {
		f.updates = f.steps
	}
	f.again = f.again || known > fresh
	f.lag = max(f.lag, stage.Lag(b, said))
	const rounding = 1e-3
	n := 0
	for range b.Tokens() {
		n++
	}
	switch apart := distance(b, "logp_gen", "logp_ref") / float64(max(1, n)); {
	case f.steps == 0:
		f.noise = apart
	case f.synced == 0 && apart > 10*f.noise+rounding:
		f.synced = f.steps
	}
	f.steps++
}

// rollout is the number of steps of the first rollout, 0 where nothing tells it.
func (f *firstRollout) rollout() int {
	if f.lag == 0 {
		return f.updates
	}
	return max(f.updates, int(math.Ceil(float64(f.synced)/(f.lag+1))))
}

// valuesTell counts the gradients that tell of a clip of values, those that are 0 or those that are not, whichever are fewer; where there are
// none of either, by how much less than one token the values have moved.
func valuesTell(b *dump.Batch) float64 {
	g := b.Token("dvalues")
	var zero, other float64
	for i := range g {
		switch {
		case !b.Mask[i]:
		case g[i] == 0:
			zero++
		default:
			other++
		}
	}
	d := distance(b, "values_new", "values")
	return min(zero, other) + d/(1+d)
}

// distance is Σ|x − y| over the mask of a batch, 0 where it lacks one of the tensors.
func distance(b *dump.Batch, x, y string) (sum float64) {
	p, q := b.Token(x), b.Token(y)
	if p == nil || q == nil {
		return 0
	}
	for i, m := range b.Mask {
		if d := math.Abs(p[i] - q[i]); m && !math.IsNaN(d) {
			sum += d
		}
	}
	return sum
}

// telling returns the step of the run on which the options of a check are searched where no profile is declared: the one that tells most
// formulas apart, if the check has an output there; else u.
func (s *session) telling(t *track, u unit) unit {
	if s.profile != nil || t.pooled || s.o.FirstFailure {
		return u
	}
	v := s.scan()
	step := v.step
	switch t.check.ID {
	case "reward/token":
		step = v.rewards
	case "gae/advantage", "gae/returns", "advantage/return": // recompute the rewards that were not dumped
		if u.b.Tensors["token_rewards"] == nil {
			step = v.rewards
		}
	case "aggregate/value_loss", "gradient/dvalues":
		step = v.values
	}
	if !v.any || step == u.b.Meta.Step {
		return u
	}
	other, err := s.unit(s.ctx, t, step)
	if err != nil || len(other.b.Missing) > 0 {
		return u
	}
	if o := stage.Judge(t.check, other.b, other.set); o.Verdict != check.Undetermined {
		return u
	}
	return other
}

// mostSolved bounds the cells that numbers are solved from.
const mostSolved = 1 << 19

// solve returns the options that the numbers of several steps together give a check of which nobody declares anything, u the first of them.
func (s *session) solve(t *track, u unit) []stage.Fit {
	return stage.Solve(t.check, s.solving(t, u))
}

// solving are the steps that numbers are solved from together, u the first of them; none where something is declared.
func (s *session) solving(t *track, u unit) []stage.Step {
	if s.profile != nil || s.o.FirstFailure || len(u.b.Missing) > 0 {
		return nil
	}
	steps := []stage.Step{{B: u.b, Set: u.set}}
	cells := len(u.b.Mask)
	for _, step := range spread(t.solvable(s), stage.SolvedSteps) {
		if step == u.b.Meta.Step {
			continue
		}
		if cells += len(u.b.Mask); cells > mostSolved {
			break
		}
		other, err := s.unit(s.ctx, t, step)
		if err != nil {
			return nil // the step is read once more, and the error is reported then
		}
		if len(other.b.Missing) == 0 && (other.b.Tensors[t.check.Output] != nil || t.check.Output == "" || u.b.Tensors[t.check.Output] == nil) {
			steps = append(steps, stage.Step{B: other.b, Set: other.set})
		}
	}
	return steps
}

// solvable are the steps that a check can be judged on: those of the run, or of a check on pooled steps none but that at hand.
func (t *track) solvable(s *session) []int {
	if t.pooled {
		return nil
	}
	return s.run.Steps()
}

package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// recursionForm is generalised advantage estimation over the tokens of a response, from the last one back:
//
//	δ_t = r_t + γ·V' − V,  A_t = δ_t + k·A_{t+1}
//
// whose V', V, k and end a program may have got wrong.
type recursionForm struct {
	id, title string
	far       bool                             // it says nothing where another form gives the same numbers
	next      func(v []float64, t int) float64 // V' of token t; of the last token see end
	end       func(v []float64, behind float64, gamma float64) float64
	endsRow   func(ended bool) bool // whether end counts for a response, by whether it has EOS; nil: for all
	endColumn bool                  // end is behind the last column, not behind the last token
	last      int                   // of the row at hand, the last token; columns behind it may be steps, too
	own       func(v []float64, t int) float64
	ownNext   bool // the own value is V', whether or not the end of an episode cuts that
	carry     func(gamma, lambda float64) float64
	reward    func(r []float64, t int) float64
	cut       func(done bool) (next, carried bool)         // whether V' and A_{t+1} count for a token after which an episode ends
	some      []float64                                    // advantages that tell of every end of an episode whether the recursion is cut there; nil: it is, or not, at all alike
	cutLast   bool                                         // whether cut decides of the last token, too, behind which next_values stands
	doneEarly bool                                         // done is that of the token behind; of the last token none
	doneLate  bool                                         // done is that of the token before; of the last token it is right
	behindEnd bool                                         // values behind the end of a response are those of the dump, not 0
	hole      holeRule                                     // what of a masked column counts
	forward   bool                                         // the columns of the result stand in the order in which they were computed
	fromFirst bool                                         // the loop runs from the first token on, and carries what stands before
	step      func(gamma, lambda float64) float64          // what V' is multiplied by
	solved    bool                                         // start is fitted to the last token of each row
	start     float64                                      // what begin gives for a row
	short     bool                                         // what is carried is δ_{t+1}, not A_{t+1}
	ownBy     func(gamma, lambda float64) float64          // what V is multiplied by; nil: 1
	scale     func(gamma, lambda float64) float64          // what A is multiplied by; nil: 1
	rewardBy  func(gamma, lambda float64) float64          // what r is multiplied by; nil: 1
	held      float64                                      // what |δ| is at most; 0: anything
	boots     func(ended, declared bool) bool              // whether next_values stand behind a response, by whether it ended and whether they are declared to; nil: as declared
	cutOnly   bool                                         // start is fitted for responses that were cut off, and 0 for the others
	begin     func(s recursionStart) float64               // A behind the last token, which is carried; nil: 0
	white     func(c *stage.Case) (*stage.Case, []float64) // the case whose rewards are whitened in another way, and what they are off by; nil: as declared
	stops     func(t, n int) (next, carried bool)          // whether V' and A_{t+1} count behind the t-th of n tokens; nil: they do
	from      func(t, n int) int                           // of n columns, the one whose A stands in t, −1 for none, which leaves 0; nil: their own
}

// holeRule is what a recursion over all columns takes from those outside the mask, where the declared one passes them by.
type holeRule struct {
	all           bool // all columns are visited; the others say how
	value         bool // V of a masked column is the next value
	carried, zero bool // A of a masked column is carried, or 0 is

	trace, discount func(gamma, lambda float64) float64 // what A' and V' are multiplied by there; nil: 1
}

func at(x []float64, t int) float64 {
	if t < 0 || t >= len(x) {
		return 0
	}
	return x[t]
}

var (
	nextValue = func(v []float64, t int) float64 { return at(v, t+1) }
	ownValue  = func(v []float64, t int) float64 { return v[t] }
	noEnd     = func([]float64, float64, float64) float64 { return 0 }
	both2     = func(gamma, lambda float64) float64 { return gamma * lambda }
	onlyGamma = func(gamma, _ float64) float64 { return gamma }
	whole     = func(float64, float64) float64 { return 1 }
	ownReward = func(r []float64, t int) float64 { return r[t] }
	cutBoth   = func(done bool) (next, carried bool) { return !done, !done }
)

func recursionForms() []recursionForm {
	right := recursionForm{id: "GAE-RECURSION", next: nextValue, end: noEnd, own: ownValue, carry: both2, step: onlyGamma, reward: ownReward, cut: cutBoth}
	with := func(id, title string, change func(*recursionForm)) recursionForm {
		f := right
		f.id, f.title = id, title
		change(&f)
		return f
	}
	own := func(v []float64, t int) float64 { return v[t] }
	return []recursionForm{
		right,
		with("GAE-RECURSION", "the next value is the own one: δ = r + γ·V_t − V_t", func(f *recursionForm) {
			f.next, f.end, f.endColumn = own, func(v []float64, _, _ float64) float64 { return v[len(v)-1] }, true
		}),
		with("GAE-RECURSION", "the next value is the own one but for the last token", func(f *recursionForm) { f.next = own }),
		with("GAE-VALUE-SHIFT", "the next value is that of the token before", func(f *recursionForm) {
			f.next = func(v []float64, t int) float64 { return at(v, t-1) }
		}),
		with("GAE-VALUE-SHIFT", "the next value is that of the token after the next", func(f *recursionForm) {
			f.next = func(v []float64, t int) float64 { return at(v, t+2) }
		}),
		with("GAE-RECURSION", "the next value is 1: a mask stands for it", func(f *recursionForm) {
			f.next = func(v []float64, t int) float64 { return float64(boolToInt(t+1 < len(v))) }
		}),
		with("GAE-RECURSION", "the own value is 1: a mask stands for it", func(f *recursionForm) { f.own = func([]float64, int) float64 { return 1 } }),
		with("GAE-RECURSION", "the own value is read without its fraction", func(f *recursionForm) { f.own = func(v []float64, t int) float64 { return math.Trunc(v[t]) } }),
		with("GAE-RECURSION", "the next value is read without its fraction", func(f *recursionForm) {
			f.next = func(v []float64, t int) float64 { return math.Trunc(at(v, t+1)) }
		}),
		with("GAE-RECURSION", "the sign of the next value: δ = r − γ·V_{t+1} − V", func(f *recursionForm) {
			f.next = func(v []float64, t int) float64 { return -at(v, t+1) }
		}),
		with("GAE-RECURSION", "the own value is the next one: δ = r + γ·V_{t+1} − V_{t+1}", func(f *recursionForm) { f.own, f.ownNext = nextValue, true }),
		with("GAE-RECURSION", "values exchanged: δ = r + γ·V_t − V_{t+1}", func(f *recursionForm) {
			f.next, f.own = own, func(v []float64, t int) float64 { return at(v, t+1) }
			f.end, f.endColumn = func(v []float64, _, _ float64) float64 { return v[len(v)-1] }, true
		}),
		with("GAE-DONES", "the ends of episodes are inverted: only they are carried over", func(f *recursionForm) {
			f.cut, f.cutLast = func(done bool) (next, carried bool) { return done, done }, true
		}),
		with("GAE-DONES", "A_{t+1} is carried over the end of an episode", func(f *recursionForm) {
			f.cut = func(done bool) (next, carried bool) { return !done, true }
		}),
		with("GAE-DONES", "the next value is taken over the end of an episode", func(f *recursionForm) {
			f.cut = func(done bool) (next, carried bool) { return true, !done }
		}),
		with("GAE-DONES", "the ends of episodes are ignored", func(f *recursionForm) {
			f.cut = func(bool) (next, carried bool) { return true, true }
		}),
		with("GAE-DONES", "the next value is taken over the end of an episode, that of the last token included", func(f *recursionForm) {
			f.cut, f.cutLast = func(done bool) (next, carried bool) { return true, !done }, true
		}),
		with("GAE-DONES", "the ends of episodes are ignored, that of the last token included", func(f *recursionForm) {
			f.cut, f.cutLast = func(bool) (next, carried bool) { return true, true }, true
		}),
		with("GAE-DONES", "the end of an episode is read one token late: done of the token before", func(f *recursionForm) { f.doneLate = true }),
		with("GAE-DONES", "the end of an episode is read one token late, that of the last token, too", func(f *recursionForm) { f.doneLate, f.cutLast = true, true }),
		with("GAE-RECURSION", "δ of the next token is carried, not its A: the trace ends there", func(f *recursionForm) { f.short = true }),
		with("GAE-HOLE", "the value of a masked column is taken as the next value, where it should be passed by", func(f *recursionForm) { f.hole = holeRule{all: true, value: true} }),
		with("GAE-HOLE", "the recursion is cut at masked columns: A_{t+1} is 0 there, where it should be carried over", func(f *recursionForm) {
			f.hole = holeRule{all: true, zero: true}
		}),
		with("GAE-PADS", "A of masked columns is carried, where they should be passed by", func(f *recursionForm) { f.hole = holeRule{all: true, carried: true} }),
		with("GAE-PADS", "A and V of masked columns are carried, where they should be passed by", func(f *recursionForm) {
			f.hole = holeRule{all: true, carried: true, value: true}
		}),
		with("GAE-HOLE", "the recursion is cut at masked columns: neither A_{t+1} nor the next value is carried over", func(f *recursionForm) {
			f.hole = holeRule{all: true, zero: true, value: true}
		}),
		with("GAE-HOLE", "A_{t+1} decays by γλ at every masked column between, where it should be carried over", func(f *recursionForm) { f.hole = holeRule{all: true, trace: both2} }),
		with("GAE-HOLE", "A_{t+1} decays by γ at every masked column between, where it should be carried over", func(f *recursionForm) { f.hole = holeRule{all: true, trace: onlyGamma} }),
		with("GAE-HOLE", "A_{t+1} decays by λ at every masked column between, where it should be carried over", func(f *recursionForm) { f.hole = holeRule{all: true, trace: onlyLambda} }),
		with("GAE-HOLE", "the next value decays by γ at every masked column between, where it should be carried over", func(f *recursionForm) { f.hole = holeRule{all: true, discount: onlyGamma} }),
		with("GAE-HOLE", "A_{t+1} decays by γλ, and the next value by γ, at every masked column between, where they should be carried over", func(f *recursionForm) {
			f.hole = holeRule{all: true, trace: both2, discount: onlyGamma}
		}),
		with("GAE-PADS", "values behind the end of a response are not 0", func(f *recursionForm) { f.behindEnd = true }),
		with("GAE-RECURSION", "the columns are in the reverse order: the list that grew from the last token back is not reversed", func(f *recursionForm) { f.forward = true }),
		with("GAE-RECURSION", "the loop runs from the first token on, not from the last one back: A of the token before is carried", func(f *recursionForm) { f.fromFirst, f.cutLast = true, true }),
		with("GAE-RECURSION", "the loop runs from the first token on, not from the last one back: A and V of the token before are carried", func(f *recursionForm) {
			f.fromFirst, f.cutLast, f.next = true, true, func(v []float64, t int) float64 { return at(v, t-1) }
			f.end, f.endColumn = func(v []float64, _, _ float64) float64 { return at(v, len(v)-2) }, true
		}),
		with("GAE-RECURSION", "the loop runs from the first token on, and the list that grew is reversed as if it ran back", func(f *recursionForm) {
			f.fromFirst, f.cutLast, f.forward = true, true, true
		}),
		with("GAE-DONES", "the end of an episode is read one token early: done of the token behind", func(f *recursionForm) { f.doneEarly, f.cutLast = true, true }),
		with("GAE-REWARD-EARLY", "the reward is that of the next token", func(f *recursionForm) {
			f.reward = func(r []float64, t int) float64 { return at(r, t+1) }
		}),
		with("GAE-REWARD-SHIFT", "the reward is that of the token before", func(f *recursionForm) {
			f.reward = func(r []float64, t int) float64 { return at(r, t-1) }
		}),
		with("GAE-REWARD-EARLY", "the reward is that of the next token, of the last one its own", func(f *recursionForm) {
			f.reward = func(r []float64, t int) float64 { return r[min(t+1, len(r)-1)] }
		}),
		with("GAE-REWARD-SHIFT", "the reward is that of the token before, of the first one its own", func(f *recursionForm) {
			f.reward = func(r []float64, t int) float64 { return r[max(t-1, 0)] }
		}),
		with("GAE-REWARD-EARLY", "the rewards are rolled: that of the next token, of the last one that of the first", func(f *recursionForm) {
			f.reward = func(r []float64, t int) float64 { return r[(t+1)%len(r)] }
		}),
		with("GAE-REWARD-SHIFT", "the rewards are rolled: that of the token before, of the first one that of the last", func(f *recursionForm) {
			f.reward = func(r []float64, t int) float64 { return r[(t+len(r)-1)%len(r)] }
		}),
		with("GAE-SHIFT", "the advantages stand one token early: that of the token behind, of the last column 0", func(f *recursionForm) {
			f.from = func(t, n int) int { return behindOr(t, n, -1) }
		}),
		with("GAE-SHIFT", "the advantages stand one token early, but for that of the first token, which is written over that of the second", func(f *recursionForm) {
			f.from = func(t, n int) int { return min(t, 1) * behindOr(t, n, -1) }
		}),
		with("GAE-SHIFT", "the advantages stand one token early, but for that of the last column", func(f *recursionForm) {
			f.from = func(t, n int) int { return behindOr(t, n, t) }
		}),
		with("GAE-SHIFT", "the advantages are rolled: that of the token behind, of the last column that of the first", func(f *recursionForm) {
			f.from = func(t, n int) int { return behindOr(t, n, 0) }
		}),
		with("GAE-SHIFT", "the advantages stand one token late: that of the token before, of the first one 0", func(f *recursionForm) {
			f.from = func(t, _ int) int { return t - 1 }
		}),
		with("GAE-SHIFT", "the advantages stand one token late, but for that of the first token", func(f *recursionForm) {
			f.from = func(t, _ int) int { return max(t-1, 0) }
		}),
		with("GAE-SHIFT", "the advantages are rolled: that of the token before, of the first one that of the last column", func(f *recursionForm) {
			f.from = func(t, n int) int { return (t + n - 1) % n }
		}),
	}
}

// recursionEdits returns edits of generalised advantage estimation.
func recursionEdits(o *stage.Outcome) []edit {
	if o.Check.ID != "gae/advantage" && o.Check.ID != "gae/returns" {
		return nil
	}
	c := o.Case.Of(o.Case.B, o.Case.Set)
	if !plainRecursion(c, o.Check) {
		return nil
	}
	var list []edit
	for _, f := range slices.Concat(recursionForms()[1:], factorForms(c), endForms(o.Case), startForms(o.Case), bootForms(o.Case), heldForms(), someEnds(o.Case), whiteForms(o.Case), solvedFactors(o.Case), solvedParts(o.Case), chunkForms(o.Case)) {
		list = append(list, edit{id: f.id, title: f.title, changes: 1 + boolToInt(f.solved && !f.cutOnly || f.some != nil), far: f.far, predict: f.predict})
	}
	return list
}

// plainRecursion reports whether an output is declared to be that of the recursion over the dumped rewards and values.
func plainRecursion(c *stage.Case, ch *stage.Check) bool {
	p, q := recursionForms()[0].predict(c, ch), under(sameInput, c, ch)
	if p == nil || q == nil || len(p.Want) != len(q.Want) {
		return false
	}
	for i, w := range p.Want {
		if c.B.Mask[i] && !(math.Abs(w-q.Want[i]) <= p.Bound[i]+q.Bound[i]+1e-6*math.Abs(w)) {
			return false
		}
	}
	return true
}

// predict returns the advantages of the form, whitened as declared, or the returns. Rounding: every step adds 8 roundings of its largest
// term, and what was carried.
func (f recursionForm) predict(c *stage.Case, ch *stage.Check) *stage.Prediction {
	b := c.B
	of := (*stage.Case).OfWhiteRewards
	if f.white != nil {
		of = f.white
	}
	c, errs := of(c)
	if c == nil {
		return nil
	}
	reward, value := c.Token("token_rewards"), c.Token("values")
	if errs != nil {
		reward.Err = errs
	}
	gamma, lambda := numberOr(c, "gae.gamma", math.NaN()), numberOr(c, "gae.lambda", math.NaN())
	if len(reward.X) != len(b.Mask) || len(value.X) != len(b.Mask) || math.IsNaN(gamma*lambda) || b.Cols == 0 {
		return nil
	}
	bootstrap, dones := c.B.Row("next_values"), c.Optional("dones").X
	if len(dones) != len(b.Mask) {
		dones = nil
	}
	p := &stage.Prediction{Want: make([]float64, len(b.Mask)), Bound: make([]float64, len(b.Mask)), Judge: slices.Clone(b.Mask)}
	k, step := f.carry(gamma, lambda), f.step(gamma, lambda)
	if f.ownBy != nil {
		own, by := f.own, f.ownBy(gamma, lambda)
		f.own = func(v []float64, t int) float64 { return by * own(v, t) }
	}
	hole := c.Set.Value("gae.hole")
	dense := hole.Kind() == convention.Enum && hole.Text() == "zero_step" // masked columns are steps, of reward and value 0
	counts := b.Mask
	if hole.Kind() == convention.Enum && hole.Text() == "none" { // every column is a step; values and rewards are those of the response, and of the token behind it where values have one
		dense, counts = true, rl.LengthMask(nil, b.Mask, b.Rows, b.Cols, boolToInt(c.EnumOr("gae.value_mask", "response") == "p1"))
	}
	if f.some != nil {
		if f.some = rawAdvantages(c); f.some == nil || dones == nil {
			return nil
		}
	}
	var shown []float64       // advantages before whitening, of a form that begins with what they show
	var zero stage.Prediction // of that form, what its rows are if they begin with 0
	if f.solved {
		shown = rawAdvantages(c)
		zero.Want, zero.Bound = make([]float64, len(p.Want)), make([]float64, len(p.Want))
	}
	before, end := 0.0, f.end
	for r := range b.Rows {
		var cells []int
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if b.Mask[i] || (dense && (f.boots == nil || i < lastOf(b, r)) || f.behindEnd) && (b.Origin[r].Cols == 0 || i-r*b.Cols < b.Origin[r].Cols) {
				cells = append(cells, i)
			}
		}
		if len(cells) == 0 {
			continue
		}
		v, rewards := make([]float64, len(cells)), make([]float64, len(cells))
		for t, i := range cells {
			if f.white != nil {
				rewards[t] = reward.X[i]
			}
			if counts[i] {
				v[t], rewards[t] = value.X[i], reward.X[i]
			} else if f.behindEnd {
				v[t] = value.X[i]
			}
		}
		last := len(cells) - 1
		for last > 0 && !b.Mask[cells[last]] {
			last--
		}
		f.last = last
		behind := 0.0
		if i := cells[last]; (i+1)%b.Cols != 0 {
			behind = value.X[i+1]
		}
		if f.hole.all {
			f.overColumns(c, p, r, reward, value, step, k)
			continue
		}
		var done []bool
		if dones != nil {
			done = f.doneOf(cells, dones)
		}
		bootstrap := bootstrapOf(bootstrap, b.Rows, r)
		if !f.bootsRow(c, r) {
			bootstrap = 0
		}
		if f.end = end; f.endsRow != nil && !f.endsRow(ended(c, r)) {
			f.end = noEnd
		}
		if f.rewardBy != nil {
			by := f.rewardBy(gamma, lambda)
			rewards = mapped(rewards, func(x float64) float64 { return by * x })
		}
		rounding := func(i int, size float64) float64 { return 8*c.Unit*size + reward.E(i) + value.E(i) }
		g := f
		switch {
		case f.solved && !(f.cutOnly && ended(c, r)):
			f.overCells(&zero, cells, v, rewards, done, behind, bootstrap, step, k, rounding)
			if i := cells[last]; len(shown) == len(b.Mask) && b.Mask[i] && k != 0 {
				g.start = (shown[i] - zero.Want[i]) / math.Pow(k, float64(len(cells)-last))
				p.Judge[i] = false // what a row begins with is fitted to its last token
			}
		case f.begin != nil:
			g.start = f.begin(recursionStart{v: v, rewards: rewards, behind: behind, width: float64(width(b, r)), before: before})
		}
		g.overCells(p, cells, v, rewards, done, behind, bootstrap, step, k, rounding)
		before = p.Want[cells[0]]
		if f.doneLate && done != nil {
			f.firstDone(c, p, cells, v, rewards, done, bootstrap, step, k, behind)
		}
		if f.from != nil && !f.moved(p, cells, r, b) {
			return nil
		}
		if f.forward {
			turned(p, b.Mask, b.Cols, r, b.Origin[r].Cols, dense)
		}
	}
	if f.scale != nil {
		p = combined(f.scale(gamma, lambda), p, 0, p)
	}
	if ch.Output == "returns" {
		return withValues(p, value, c)
	}
	if v := c.Set.Value("whiten.scope"); v.Kind() != convention.Enum || v.Text() == "none" {
		return p
	}
	return whitenedFrom(p, nil, c, ch)
}

// withValues makes returns of the advantages of a prediction.
func withValues(p *stage.Prediction, value stage.Input, c *stage.Case) *stage.Prediction {
	for i := range c.B.Tokens() {
		p.Want[i] += value.X[i]
		p.Bound[i] += c.Unit * math.Abs(p.Want[i])
	}
	return p
}

// lengthEdits returns edits of advantages that are multiplied by, or divided by, a count of their row.
func lengthEdits(o *stage.Outcome) []edit {
	if !slices.Contains([]string{"advantage/group", "advantage/return", "gae/advantage", "token_loss/policy", "ratio/is_weights", "kl/token", "reward/token"}, o.Check.ID) {
		return nil
	}
	c := o.Case.Of(o.Case.B, o.Case.Set)
	b := c.B
	t := b.Tensors[o.Check.Output]
	if t == nil || t.Width > 1 || b.Cols == 0 || t.Layout != dump.PerToken && t.Layout != dump.PerRow || len(o.Got) != len(t.Data) {
		return nil
	}
	p := countsOf(c)
	var list []edit
	for _, what := range append(slices.Clone(p.length), p.count...) {
		for _, divided := range []bool{true, false} {
			by, ok := rowFactor(what.x, divided)
			if !ok {
				continue
			}
			k, ok := beside(o, by)
			if !ok {
				continue
			}
			word, id := "multiplied", "FACTOR"
			if divided {
				word = "divided"
			}
			if (o.Check.Output == "advantages" || o.Check.ID == "token_loss/policy") && divided && (what.what == "its own tokens" || what.what == root) {
				id = "ADV-DIVIDED-BY-LENGTH"
			}
			title := o.Check.Output + " of a response is " + word + " by " + what.what
			if k != 1 {
				title += fmt.Sprintf(", and multiplied by %g", k)
			}
			list = append(list, edit{id: id, title: title, changes: 1, foreign: what.what == root || k != 1,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
					p, q := under(sameInput, c, ch), countsOf(c)
					at := slices.IndexFunc(append(slices.Clone(q.length), q.count...), func(x part) bool { return x.what == what.what })
					if p == nil || at < 0 {
						return nil
					}
					by, ok := rowFactor(append(slices.Clone(q.length), q.count...)[at].x, divided)
					if !ok {
						return nil
					}
					return timesCells(p, 2*c.Unit, func(i int) float64 {
						if len(p.Want) == len(c.B.Mask) {
							i /= c.B.Cols
						}
						return k * by[i]
					})
				}})
		}
	}
	return list
}

// beside returns the number that the output is off by beside a factor of every row, 1 or one that people write, and false where no number fits all cells.
// Of a number other than 1 rows of several factors have to speak.
func beside(o *stage.Outcome, by []float64) (k float64, ok bool) {
	b := o.Case.B
	factor := func(i int) (float64, bool) {
		r := i
		if len(o.Pred.Want) == len(b.Mask) {
			if r = i / b.Cols; !b.Mask[i] {
				return 0, false
			}
		}
		return by[r], o.Pred.Judge == nil || o.Pred.Judge[i]
	}
	fits := func(k float64) bool {
		for i, w := range o.Pred.Want {
			f, judged := factor(i)
			if judged && !(math.Abs(o.Got[i]-k*w*f) <= 4*o.Limit(i)*max(math.Abs(k)*f, 1)+1e-6*math.Abs(k*w*f)) {
				return false
			}
		}
		return true
	}
	if fits(1) {
		return 1, true
	}
	var numbers []float64
	factors := map[float64]bool{}
	for i, w := range o.Pred.Want {
		if f, judged := factor(i); judged && w*f != 0 && math.Abs(w) > apart*o.Pred.Bound[i] {
			numbers = append(numbers, o.Got[i]/(w*f))
			factors[f] = true
		}
	}
	const enough, several = 6, 3
	if len(numbers) < enough || len(factors) < several {
		return 0, false
	}
	slices.Sort(numbers)
	k = rounded(numbers[len(numbers)/2], 2)
	return k, k != 0 && fits(k)
}

// rowFactor returns x or 1/x, false where it is the same for all rows, which is a factor of everything.
func rowFactor(x []float64, divided bool) ([]float64, bool) {
	by := slices.Clone(x)
	same := true
	for r, v := range x {
		if v == 0 {
			by[r] = 1
			continue
		}
		if divided {
			by[r] = 1 / v
		}
		same = same && by[r] == by[0]
	}
	return by, !same
}

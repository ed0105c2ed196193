package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/tol"
)

// A loss that no aggregation explains may be one of them, divided once more by a count that is there already, or not rescaled from what was counted over
// several steps. Such a factor is told from the losses of all files: the options are then those of the reduction beneath it, against which the
// loss is wrong by that factor.

// misdivision is a division that a reduction has besides: of some aggregations, by a number of each file.
type misdivision struct {
	id    string
	kinds []int
	by    func(f *wholeFile) float64
}

// misdivisions are those of the files of a run, the plain ones first:
//
//	W/G        the tokens G of a generation batch of P steps, without P (TRL before #6024, GRPOTrainer._compute_loss): right is W·P/G
//	w/A        a reduction w, whose count is that of the step or which the accumulation steps A divide, by A once more
//	W·P/G_r    the tokens G_r that the own rank has of a generation batch of P steps, for those of all W ranks: a count that is not gathered
//
// A sum that is divided by the tokens of all W ranks lacks W where gradients are summed over ranks, so that 1/W is no bug. That P steps are steps of the
// optimiser, and not parts of one, is seen where the policy leaves the log-probs of the rollout behind the first of them.
func (w *wholes) misdivisions() (list []misdivision) {
	twice := misdivision{"AGG-GA-TWICE", []int{ofTokensDivided, ofTokensGlobal, ofRowsDivided, ofRowsGlobal}, func(f *wholeFile) float64 { return f.steps }}
	for span := 2; span <= min(mostSteps, len(w.steps)) && !w.gap; span++ {
		if len(w.steps)%span == 0 && w.moves(span) {
			list = append(list, misdivision{"AGG-NUM-ITEMS-GENERATION", []int{ofGenerations + span}, func(f *wholeFile) float64 { return float64(span) }})
			twice.kinds = append(twice.kinds, ofGenerations+span)
		}
	}
	list = append(list, twice)
	for span := 1; span <= min(mostSteps, len(w.steps)) && !w.gap; span++ {
		kind := ofGenerations + span
		if span == 1 {
			kind = ofTokensGlobal
		}
		if len(w.steps)%span == 0 {
			list = append(list, misdivision{"AGG-LOCAL-DENOMINATOR", []int{kind}, func(f *wholeFile) float64 { return w.ofRank(f, span) }})
		}
	}
	return list
}

// ofRank returns the share that the rank of a file has in the tokens of its span of steps, NaN where they are all in the file: W times a mean over a file is
// what open-instruct makes of one (its loss is averaged over ranks), and of files that are accumulated nobody does.
func (w *wholes) ofRank(f *wholeFile, span int) float64 {
	var own, all float64
	lo := f.step / span * span
	for s := lo; s < min(lo+span, len(w.ranks)); s++ {
		own += w.ranks[s][f.rank]
		for _, n := range w.ranks[s] {
			all += n
		}
	}
	if f.world < 2 || span == 1 && f.steps < 2 {
		return math.NaN()
	}
	return own / all
}

// told reports whether a division of every file by a number is one that no other reduction has: a share of ranks says nothing where all have 1/W.
func (m *misdivision) told(files []wholeFile) bool {
	shares := false
	for i := range files {
		f := &files[i]
		by := m.by(f)
		if !(by > 0) || by == f.world || by == 1 {
			return false
		}
		shares = shares || by < 1 && math.Abs(by*f.world-1) > 1e-2
	}
	return shares || len(files) > 0 && m.by(&files[0]) > 1
}

// distanceOfPolicy is the mean of |logp_new − logp_old| over the tokens of a batch, NaN where one of them is not there.
func distanceOfPolicy(b *dump.Batch) float64 {
	lp, old := b.Token("logp_new"), b.Token("logp_old")
	if lp == nil || old == nil {
		return math.NaN()
	}
	var sum, n float64
	for i, on := range b.Mask {
		if on {
			sum, n = sum+math.Abs(lp[i]-old[i]), n+1
		}
	}
	return sum / n
}

// moves reports whether in every span of steps the policy is elsewhere than at its rollout in some step, and in the first span only behind the first.
func (w *wholes) moves(span int) bool {
	for lo := 0; lo+span <= len(w.moved); lo += span {
		later := slices.Max(w.moved[lo+1 : lo+span])
		if !(max(later, w.moved[lo]) > 0) || lo == 0 && !(4*w.moved[lo] < later) {
			return false
		}
	}
	return len(w.moved) >= span
}

// misfit is [wholes.fit] of losses that some misdivision has made too small; nil where none has, or where coarse numbers leave it in doubt.
func (w *wholes) misfit() *wholeFit {
	const clear = 64
	if w.no || !w.has[0] || w.unit > 1e-5 {
		return nil
	}
	for _, m := range w.misdivisions() {
		if !m.told(w.files) {
			continue
		}
		v := *w
		v.only, v.files = m.kinds, slices.Clone(w.files)
		apart := 0.0
		for i := range v.files {
			f := &v.files[i]
			apart = max(apart, math.Abs(m.by(f)-1)*math.Abs(f.loss))
			f.loss *= m.by(f)
		}
		f := v.fit()
		if f == nil || clear*f.left*f.size > apart || !w.sure(f) {
			continue
		}
		f.misdivided = m.id
		return f
	}
	return nil
}

// sure reports whether a fit of losses that are wrong, or of another count of rows, leaves roundings alone, has written coefficients, and has more files than these.
func (w *wholes) sure(f *wholeFit) bool {
	const near = 16
	return w.unit <= 1e-5 && f.left <= near*max(w.unit, tol.U32) && f.written() && len(w.files) >= len(f.coefficients)+4
}

// lacked are tokens that a sum may lack although they are counted: the last of every response, its first, or the last of those of which the gradient is 0 there.
var lacked = [...]struct {
	id string
	of func(g []float64, cells []int) int
}{
	{"LOSS-MASK-NO-EOS-ABOVE", func(_ []float64, cells []int) int { return cells[len(cells)-1] }},
	{"LOSS-MASK-FIRST", func(_ []float64, cells []int) int { return cells[0] }},
	{"LOSS-MASK-OTHER", func(g []float64, cells []int) int {
		if last := cells[len(cells)-1]; g != nil && g[last] == 0 {
			return last
		}
		return -1
	}},
}

// withoutTokens is b with nothing of the loss, the KL and the entropy of one token of every response, −1 for none.
func withoutTokens(b *dump.Batch, of func(g []float64, cells []int) int) *dump.Batch {
	g := b.Token("dlogp")
	var out []int
	for r := range b.Rows {
		if cells := slices.Collect(b.TokensOf(r)); len(cells) > 0 {
			if i := of(g, cells); i >= 0 {
				out = append(out, i)
			}
		}
	}
	for _, name := range wholeTerms {
		if x := b.Token(name); x != nil {
			x = slices.Clone(x)
			for _, i := range out {
				x[i] = 0
			}
			b = b.With(name, x)
		}
	}
	return b
}

// reduction is the reduction beneath a bug as options.
func (f *wholeFit) reduction() []assign { return reductionOf(f.kind) }

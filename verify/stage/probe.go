package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

const (
	probedFrom = 200_000 // cells of a batch from which on candidates are probed
	probeCells = 16_384
	probeRows  = 16 // at least, so that a bug at the edge of the probe does not decide
)

// Probe returns neighbouring rows of a large batch on which an explanation of a gradient can be tried before it is tried on
// everything, nil where that tells nothing or saves nothing. A prediction for them is that for the batch but for one factor: the
// denominators are those of fewer tokens. [Worth] is made for it.
func Probe(ch *Check, b *dump.Batch) *dump.Batch {
	t := b.Tensors[ch.Output]
	if ch.Stage != convention.Gradient || t == nil || t.Layout != dump.PerToken || len(b.Mask) < probedFrom || b.Rows < 2*probeRows {
		return nil
	}
	file := 0 // the one with the most rows: other files have other denominators
	for i, f := range b.Files {
		if f.Hi-f.Lo > b.Files[file].Hi-b.Files[file].Lo {
			file = i
		}
	}
	f := b.Files[file]
	rows := make([]int, min(max(probeRows, probeCells/b.Cols), f.Hi-f.Lo))
	if len(rows) < probeRows {
		return nil
	}
	for i := range rows {
		rows[i] = f.Lo + i
	}
	return b.Select(rows)
}

// Probed returns the outcome of o on a probe, nil if it tells nothing of candidates that predict the same: if the probe is right, so
// that what is wrong lies elsewhere, or if the batch has several files, whose denominators may differ where those of the probe do
// not.
func Probed(o *Outcome, probe *dump.Batch) *Outcome {
	if probe == nil || len(o.Case.B.Files) != 1 || o.Check.Stage != convention.Gradient {
		return nil
	}
	if p := JudgeAs(o.Check, probe, o.Case.Set, o.Arithmetic); p.Verdict == check.Fail {
		return p
	}
	return nil
}

// uneven is how many times longer or shorter than those of the batch the responses of a probe may be.
const uneven = 8

// Worth reports whether a candidate that gave o on a probe is worth a try on everything: it fits up to a factor, and is not what
// was wrong already. If it is that times a number, then the same number, up to the mean length of responses, has to make the
// wrong gradient right.
func Worth(o, wrong *Outcome) bool {
	if !UpToFactor(o) {
		return false
	}
	if wrong == nil {
		return true
	}
	var tried, right []float64 // quotients
	for i, w := range wrong.Pred.Want {
		if math.Abs(w) > 4*wrong.Pred.Bound[i] {
			tried, right = append(tried, o.Pred.Want[i]/w), append(right, o.Got[i]/w)
		}
	}
	if len(tried) == 0 {
		return true
	}
	slices.Sort(tried)
	slices.Sort(right)
	factor := tried[len(tried)/2]
	for i, w := range wrong.Pred.Want {
		if !(math.Abs(o.Pred.Want[i]-factor*w) <= 1e-9*math.Abs(factor*w)) {
			return true
		}
	}
	by := right[len(right)/2] / factor
	return factor != 1 && by > 1./uneven && by < uneven
}

// UpToFactor reports whether three quarters of the compared elements that are not 0 are what was predicted times one number, the
// median of the quotients.
func UpToFactor(o *Outcome) bool {
	p := o.Pred
	if p == nil || len(o.Got) != len(p.Want) {
		return false
	}
	judged := func(i int) bool {
		return p.Judge != nil && p.Judge[i] || p.Judge == nil && (len(o.Got) != len(o.Case.B.Mask) || o.Case.B.Mask[i])
	}
	var quotients []float64
	for i, w := range p.Want {
		if q := o.Got[i] / w; judged(i) && math.Abs(w) > 4*p.Bound[i] && !math.IsNaN(q) && !math.IsInf(q, 0) {
			quotients = append(quotients, q)
		}
	}
	factor := 1.0
	if len(quotients) > 0 {
		slices.Sort(quotients)
		factor = quotients[len(quotients)/2]
	}
	unit, eta := o.Check.stored(o.Case.B)
	agree, total := 0, 0
	for i, w := range p.Want {
		if !judged(i) || w == 0 && o.Got[i] == 0 {
			continue
		}
		total++
		w *= factor
		limit := math.Abs(factor)*p.Bound[i] + tol.Storage(w, unit, eta)
		if math.Abs(o.Got[i]-w) <= 2*limit+8*o.Arithmetic.Unit*math.Abs(w) {
			agree++
		}
	}
	return 4*agree >= 3*total
}

// stored returns the rounding unit and the smallest number of the type in which the output of ch is stored.
func (ch *Check) stored(b *dump.Batch) (unit, eta float64) {
	if t := b.Tensors[ch.Output]; t != nil {
		return t.Type.Unit()
	}
	return 0, tol.Eta32
}

// local reports whether under set the advantages of a group, or of a row, are those of its rows alone: nothing is taken over the
// batch. What set leaves open may be either.
func local(set *convention.Set) bool {
	is := func(option string, values ...string) bool { return slices.Contains(values, set.Value(option).String()) }
	return is("adv.kind", "group", "gae", "opo", "passk", "gpg") && !is("adv.scale", "batch_std", "?") && is("whiten.scope", "none", "row", "–") &&
		!is("rewards.whiten", "shift_mean_false", "?")
}

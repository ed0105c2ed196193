package stage

import (
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// tokenTerms are the tensors that terms of a loss are aggregates of, in the order of lossTerms.
var tokenTerms = [3]string{"kl", "entropy", ""}

// addParts takes the files of a batch that has its policy loss.
func (l *Losses) addParts(b *dump.Batch, loss, policy []float64) {
	c := NewCase(b, &convention.Set{}, 0)
	for k, t := range lossTerms {
		if l.has[k] {
			for _, v := range b.PerFile(t.name) {
				l.terms[k] = append(l.terms[k], t.sign*v)
			}
		} else if x := b.Token(tokenTerms[k]); x != nil {
			for _, of := range c.aggregated(x) {
				for kind, v := range of {
					l.means[k][kind] = append(l.means[k][kind], t.sign*v)
				}
			}
		}
	}
	if x := b.Token("token_loss"); x != nil {
		of := [2][]float64{x, x}
		if w := c.Optional("is_weights").X; len(w) == len(x) {
			of[1] = make([]float64, len(x))
			for i, v := range w {
				of[1][i] = float64(v * x[i])
			}
		}
		for k := range of {
			for _, of := range c.aggregated(of[k]) {
				for kind, v := range of {
					l.own[k][kind] = append(l.own[k][kind], v)
				}
			}
		}
	}
	for f := range b.Files {
		l.policy = append(l.policy, policy[f])
		l.loss = append(l.loss, loss[f]-policy[f])
	}
}

// sharedReduction is an aggregation, and a constant that its sums are divided by besides.
type sharedReduction struct {
	kind int
	by   float64
}

// kinds are the aggregations, those under which the policy losses of all files are what their token losses make first, with importance weights or without:
// micro-batches of as many rows have the same means but for a factor, and terms share what they are divided by.
func (l *Losses) kinds() []sharedReduction {
	const near = 1e-4
	var shared, others []sharedReduction
	largest := 0.0
	for _, x := range l.policy {
		largest = max(largest, math.Abs(x))
	}
	for kind := range aggregations {
		found := false
		for _, own := range l.own {
			of := sharedReduction{kind, 1}
			if len(own[kind]) != len(l.policy) {
				continue
			}
			if kind == ofSums || kind == ofSumsGlobal {
				var xy, yy float64
				for f, x := range own[kind] {
					xy, yy = xy+float64(x*l.policy[f]), yy+float64(l.policy[f]*l.policy[f])
				}
				of.by = written(xy/yy, near)
			}
			found = of.by > 0
			for f := 0; f < len(l.policy) && found; f++ {
				found = math.Abs(own[kind][f]/of.by-l.policy[f]) <= near*largest
			}
			if found {
				shared = append(shared, of)
				break
			}
		}
		if !found {
			others = append(others, sharedReduction{kind, 1})
		}
	}
	return append(shared, others...)
}

// ofParts solves loss − pg_loss = β·kl_loss − c_H·entropy_loss + c_V·value_loss for the coefficients of the terms that the files have, by least
// squares over the files: nil unless there are two files more than coefficients, and all files agree to 1e-4 of the largest difference. Where
// these terms do not do, one that the files have of tokens alone stands beside them, under the aggregation with which all agree.
func (l *Losses) ofParts() map[string]float64 {
	var terms [3][]float64
	for k := range lossTerms {
		if l.has[k] {
			terms[k] = l.terms[k]
		}
	}
	if found := l.coefficientsOf(terms); found != nil {
		return found
	}
	for _, more := range [][]int{{1}, {0}, {0, 1}} {
		for _, of := range l.kinds() {
			with := terms
			for _, k := range more {
				if len(l.means[k][of.kind]) != len(l.loss) {
					with = [3][]float64{}
					break
				}
				with[k] = eachOf(len(l.loss), func(f int) float64 { return l.means[k][of.kind][f] / of.by })
			}
			if found := l.coefficientsOf(with); found != nil {
				return found
			}
		}
	}
	return nil
}

// ofSize reports whether the numbers that the files have of a term are entropies or squares, which are above 0, and not what is added of them.
func (l *Losses) ofSize(k int) bool {
	if lossTerms[k].option == "kl.beta" {
		return true // an estimate may be below 0
	}
	for _, v := range l.terms[k] {
		if !(lossTerms[k].sign*v > 0) {
			return false
		}
	}
	return true
}

// coefficientsOf solves for the coefficients of the terms that are not nil, by their options. A coefficient of 1 is none: the term was dumped as it
// is added. Of one below 0 the magnitude is returned: no configuration has it, and the loss is then wrong by the sign of its term.
func (l *Losses) coefficientsOf(terms [3][]float64) map[string]float64 {
	var which []int
	for k, t := range terms {
		if t != nil {
			which = append(which, k)
		}
	}
	n := len(which)
	if n == 0 || len(l.loss) < n+2 {
		return nil
	}
	a := make([]float64, n*(n+1))
	largest := 0.0
	for f, y := range l.loss {
		largest = max(largest, math.Abs(y))
		for i, k := range which {
			for j, m := range which {
				a[i*(n+1)+j] += float64(terms[k][f] * terms[m][f])
			}
			a[i*(n+1)+n] += float64(terms[k][f] * y)
		}
	}
	x := eliminate(a, n)
	if x == nil || !(largest > 0) {
		return nil
	}
	for f, y := range l.loss {
		for i, k := range which {
			y -= float64(x[i] * terms[k][f])
		}
		if !(math.Abs(y) <= 1e-4*largest) {
			return nil
		}
	}
	found := map[string]float64{}
	for i, k := range which {
		most := 0.0
		for _, term := range terms[k] {
			most = max(most, math.Abs(x[i]*term))
		}
		if most <= 1e-3*largest {
			continue // it is as large as what the files may leave
		}
		if x[i] < 0 && !l.ofSize(k) {
			continue
		}
		if c := written(math.Abs(x[i]), 1e-3); c > 0 && math.Abs(c-1) > 1e-3 {
			found[lossTerms[k].option] = c
		}
	}
	return found
}

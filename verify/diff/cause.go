package diff

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

// cause names what breaks a relation by the first tensor that differs.
func (w *walk) cause() (id, why string) {
	d, rel := w.first, w.o.Relation.Name
	if d.biased > 0 {
		return oneSided, ""
	}
	logp := d.kind == forward
	switch rel {
	case "repeat":
		switch {
		case logp:
			return dropoutOn, "the ids are equal"
		case d.kind == prompts || d.kind == sampled || d.kind == rewarded:
			return notRepeated, ""
		}
	case "partition":
		if logp {
			return batchSeen, "the ids are equal"
		}
		if d.kind == derived && w.at.x != nil {
			if id, why := w.at.shares(); id != "" {
				return id, why
			}
		}
		if d.name == "advantages" {
			return "ADV-GROUPS-PER-FILE", "rewards are equal"
		}
		return meanOfMeans, "all that goes into it is equal"
	case "padding":
		if logp {
			return paddingSeen, "the ids are equal"
		}
	case "packing":
		switch {
		case logp && w.at.x != nil:
			first, later := w.at.behind(d.name)
			if first == 0 && later > 0 {
				return packSeen, fmt.Sprintf("the sequences that begin a packed row agree, and %d of those behind another one do not", later)
			}
			return paddingSeen, "the ids are equal, and sequences that begin a packed row differ as well"
		case d.kind == derived && w.at.x != nil:
			if id, why := w.at.shares(); id != "" {
				return id, why
			}
			return meanOfMeans, "all that goes into it is equal"
		}
	case "permute":
		if logp {
			return "ROWS-SWAPPED", "the same tokens have other log-probs in another order"
		}
		if d.kind == derived {
			return "ADV-ROWS-OF-OTHERS", "all that goes into it is equal"
		}
	case "resume":
		switch {
		case d.kind == prompts:
			return dataLost, ""
		case logp && w.compare > 1 && w.exact:
			return momentsLost, "the step before is equal in all tensors, and the update after it is not"
		case logp:
			return weightsLost, "the ids are equal"
		case d.kind == sampled || d.kind == rewarded:
			if w.at.x == nil {
				return rngLost, ""
			}
			n, differ := w.at.begin()
			switch {
			case n > 0 && differ && w.at.x.Tensors["input_ids"] == nil:
				return stateLost, fmt.Sprintf("%d tokens at the beginning of rows are equal, their log-probs are not", n)
			case n > 0 && differ:
				return weightsLost, fmt.Sprintf("%d tokens at the beginning of rows are equal, their log-probs are not", n)
			case n > 0:
				return rngLost, fmt.Sprintf("%d tokens at the beginning of rows are equal, and so are their log-probs: the weights are the same", n)
			}
			return rngLost, "no row begins alike, so that other prompts or weights cannot be told from other random numbers: dump input_ids"
		}
	}
	return idRuns, ""
}

// behind counts the rows whose log-probs differ by more than rounding: those that begin a row of both files, and those that stand behind
// another sequence in one of them.
func (p *pairing) behind(name string) (first, later int) {
	u := math.Max(unit(p.x), unit(p.y))
	x, y := p.x.Token(name), p.y.Token(name)
	for k, r := range p.ra {
		s, differ := p.rb[k], false
		for i := range min(len(p.ca[k]), len(p.cb[k])) {
			v, w := x[r*p.x.Cols+p.ca[k][i]], y[s*p.y.Cols+p.cb[k][i]]
			differ = differ || !(math.Abs(v-w) <= passLimit(u, v, w))
		}
		switch {
		case !differ:
		case p.x.Origin[r].Col > 0 || p.y.Origin[s].Col > 0:
			later++
		default:
			first++
		}
	}
	return first, later
}

// passLimit is how far two forward passes of roundoff u may be apart in the log-prob of a token; see [pairing.compare].
func passLimit(u, v, w float64) float64 {
	return 8*math.Sqrt2*stage.OrdinaryScale*u/tol.UB*-math.Expm1(min(v, w, 0)) + 64*u*max(1, math.Abs(v))
}

// begin counts the tokens that rows of two runs begin with alike, and says whether their log-probs differ by more than rounding.
func (p *pairing) begin() (n int, differ bool) {
	u := math.Max(unit(p.x), unit(p.y))
	for k, r := range p.ra {
		s := p.rb[k]
		for i := range min(len(p.ca[k]), len(p.cb[k])) {
			a, oka := p.x.TokenID(r, p.ca[k][i])
			b, okb := p.y.TokenID(s, p.cb[k][i])
			if !oka || !okb || a != b {
				break
			}
			n++
			for _, name := range []string{"logp_old", "logp_gen", "logp_new"} {
				if x, y := p.x.Token(name), p.y.Token(name); x != nil && y != nil {
					v, w := x[r*p.x.Cols+p.ca[k][i]], y[s*p.y.Cols+p.cb[k][i]]
					differ = differ || !(math.Abs(v-w) <= passLimit(u, v, w))
					break
				}
			}
		}
	}
	return n, differ
}

// shares looks at the gradients of the micro-batches of the two runs. If the second's are the first's times a factor of each
// micro-batch, the denominators differ: a factor N/(M·n) where a micro-batch of n of N tokens, one of M, divides by its own tokens.
func (p *pairing) shares() (id, why string) {
	ga, gb := p.x.Token("dlogp"), p.y.Token("dlogp")
	if ga == nil || gb == nil {
		return "", ""
	}
	swap := len(p.x.Files) > len(p.y.Files)
	parted, whole := p.y, p.x
	if swap {
		parted, whole = whole, parted
	}
	type part struct{ xy, xx, yy, tokens, rows float64 }
	parts := make([]part, len(parted.Files))
	var all part
	for k := range p.ra {
		row := p.rb[k]
		if swap {
			row = p.ra[k]
		}
		t := &parts[parted.File(row)]
		t.rows++
		all.rows++
		for i, ca := range p.ca[k] {
			a, b := ga[p.ra[k]*p.x.Cols+ca], gb[p.rb[k]*p.y.Cols+p.cb[k][i]]
			if swap {
				a, b = b, a
			}
			t.xy += float64(a * b)
			t.xx += float64(a * a)
			t.yy += float64(b * b)
			t.tokens++
			all.tokens++
		}
	}
	M := float64(len(parted.Files)) / float64(max(1, len(whole.Files)))
	proportional, local, rows, equal := true, true, true, true
	var factors []string
	var one float64
	near := func(x, y float64) bool { return math.Abs(x-y) <= 1e-3*math.Abs(y) }
	for _, t := range parts {
		if t.xx == 0 || t.tokens == 0 {
			continue
		}
		f := t.xy / t.xx
		proportional = proportional && t.yy-f*t.xy <= 1e-6*t.yy
		local = local && near(f, all.tokens/(M*t.tokens))
		rows = rows && near(f, all.rows/(M*t.rows))
		one = cmp.Or(one, f)
		equal = equal && near(f, one)
		factors = append(factors, fmt.Sprintf("%.4g", f))
	}
	if !proportional || one == 0 {
		return "", ""
	}
	why = "its micro-batches have " + strings.Join(factors[:min(len(factors), 8)], ", ") + " times the gradient of the other run"
	switch {
	case equal && !near(one, 1) && near(one, M):
		return notDivided, why
	case equal && !near(one, 1) && near(one, 1/M):
		return dividedTwice, why
	case local:
		return meanOfMeans, why + ", as where each divides by its own tokens"
	case rows && !equal:
		return meanOfMeans, why + ", as where each divides by its own rows"
	}
	return "", ""
}

package fault

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// operands are the tensors that a formula can take one for another: what the same shape has, and is computed before the output.
var operands = []string{"logp_new", "logp_old", "logp_gen", "logp_ref", "values", "values_new", "returns", "advantages", "kl", "entropy", "is_weights", "token_rewards", "scores"}

// ids of operands that stand for others.
var swappedIDs = map[[2]string]string{
	{"logp_old", "logp_gen"}: "OLD-IS-GEN", {"logp_old", "logp_ref"}: "OLD-IS-REF", {"logp_old", "logp_new"}: "OLD-RECOMPUTED",
	{"logp_ref", "logp_old"}: "KL-OLD-FOR-REF", {"logp_ref", "logp_gen"}: "KL-OF-GEN", {"logp_ref", "logp_new"}: "REF-IS-POLICY",
	{"logp_gen", "logp_old"}: "IS-OLD-FOR-GEN", {"logp_gen", "logp_new"}: "IS-NEW-FOR-GEN",
	{"returns", "advantages"}: "VALUE-AGAINST-ADVANTAGES", {"values", "values_new"}: "GAE-VALUES-NEW",
}

// inputEdits returns edits of what a formula reads: another tensor in place of one, one moved by a token or a row, negated, or two
// numbers of the configuration exchanged.
func inputEdits(o *stage.Outcome) []edit {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	b := c.B
	read := func(name string) bool { // the output depends on it
		t := b.Tensors[name]
		return t != nil && name != o.Check.Output && t.Width <= 1 && (t.Layout == dump.PerToken || t.Layout == dump.PerRow) && !(made[name] > made[o.Check.Output] && made[o.Check.Output] > 0)
	}
	var list []edit
	add := func(id, title string, in input) {
		id = ofKL(o.Check, id, title)
		list = append(list, edit{id: id, title: title, changes: 1, predict: guarded(in)})
	}
	for _, name := range operands {
		if !read(name) {
			continue
		}
		for _, other := range operands {
			if other == name || !read(other) || b.Tensors[other].Layout != b.Tensors[name].Layout {
				continue
			}
			id := swappedIDs[[2]string{name, other}]
			if id == "" {
				id = "OTHER-TENSOR"
			}
			add(id, fmt.Sprintf("%s is read where %s should be", other, name), instead(name, other))
		}
		if b.Tensors[name].Layout == dump.PerToken {
			add("OTHER-TENSOR", name+" is read one token late: that of the token before", shifted(name, 1))
			add("OTHER-TENSOR", name+" is read one token early: that of the token behind", shifted(name, -1))
			add(shiftedID(c, name, 1), name+" is read one token late: that of the token before, in the first column its own", keepingEnds(name, 1))
			add(shiftedID(c, name, -1), name+" is read one token early: that of the token behind, in the last column its own", keepingEnds(name, -1))
		}
		for _, by := range []int{1, -1} {
			word := map[int]string{1: "late: that of the token before", -1: "early: that of the token behind"}[by]
			switch {
			case b.Tensors[name].Layout != dump.PerToken:
			case o.Check.Stage == convention.Aggregate:
				add(shiftedID(c, name, by), fmt.Sprintf("%s is rolled: read one token %s, the end of the row, padding included, at its beginning", name, word), token(name, func(c *stage.Case, x []float64) []float64 {
					y := make([]float64, len(x))
					for i := range y {
						y[i], _ = neighbour(c, x, i, 0, -by)
					}
					return y
				}))
			default:
				list = append(list, edit{id: ofKL(o.Check, "OTHER-TENSOR", name+" is read one token"), title: fmt.Sprintf("%s is rolled: read one token %s, the end of the row at its beginning", name, word), changes: 1,
					predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return rolledRow([]string{name}, by, c, ch) }})
			}
		}
		add("OTHER-FORM", name+" is rounded to bfloat16 before it is used", token(name, func(_ *stage.Case, x []float64) []float64 { return mapped(x, toBF16) }))
		add("OTHER-FORM", name+" is read without its fractions, as an integer", token(name, func(_ *stage.Case, x []float64) []float64 { return mapped(x, math.Trunc) }))
		add("OTHER-TENSOR", name+" is read from the rows in reversed order", reversed(name))
		add("OTHER-TENSOR", name+" is read from the row before", rolled(name, 1))
		add("OTHER-TENSOR", name+" is read from the row behind", rolled(name, -1))
		add("OTHER-TENSOR", name+" is read with the wrong sign", negated(name))
		add("OTHER-TENSOR", name+" is left out: 0 stands for it", constant(name, 0))
		if name == "scores" || name == "token_rewards" || name == "advantages" {
			add("OTHER-FORM", "the magnitude of "+name+" is read", token(name, func(_ *stage.Case, x []float64) []float64 { return mapped(x, math.Abs) }))
		}
	}
	if read("advantages") && (o.Check.Stage == convention.TokenLoss || o.Check.Stage == convention.Gradient) {
		for _, f := range functions {
			add("ADV-FORM", "the loss reads "+f.of("A")+" for the advantage A", token("advantages", func(_ *stage.Case, x []float64) []float64 { return mapped(x, f.f) }))
		}
	}
	ofRatio := o.Check.Stage != convention.Reward && o.Check.Stage != convention.Advantage && o.Check.ID != "gradient/dvalues" // values have none
	if read("logp_old") && read("logp_new") && ofRatio {
		for _, k := range []float64{2, 0.5, -1, 3} {
			in := token("logp_old", func(c *stage.Case, x []float64) []float64 {
				lp := c.B.Token("logp_new")
				if len(lp) != len(x) {
					return nil
				}
				return eachOf(len(x), func(i int) float64 { return lp[i] - k*(lp[i]-x[i]) })
			})
			list = append(list, edit{id: "RATIO-FORM", title: fmt.Sprintf("the log-ratio is multiplied by %g", k), changes: 1,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
					slope := 1.0
					if ch.Stage == convention.Gradient {
						slope = k // ∂exp(k·d)/∂d
					}
					return combined(slope, policyOnly(in, c, ch), 1, klOnly(c, ch))
				}})
		}
	}
	numbers := slices.DeleteFunc(slices.Clone(o.Case.Read), func(name string) bool { return c.Set.Value(name).Kind() != convention.Number })
	for i, name := range numbers {
		v := c.Set.Value(name)
		for _, other := range numbers[i+1:] {
			w := c.Set.Value(other)
			if v == w || kindOf(name) != kindOf(other) {
				continue
			}
			add(optionID(name, "OTHER-OPTION"), fmt.Sprintf("%s and %s are exchanged", name, other), func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
				v, w := c.Set.Value(name), c.Set.Value(other)
				if leavesNothing(c, name, other) {
					return nil, nil, false
				}
				return c.B, c.Set.With(name, w, "hypothesis").With(other, v, "hypothesis"), true
			})
		}
		for _, other := range numbers {
			if other == name || c.Set.Value(other) == v || kindOf(name) != kindOf(other) {
				continue
			}
			add(optionID(name, "OTHER-OPTION"), fmt.Sprintf("%s is read where %s should be", other, name), func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
				return c.B, c.Set.With(name, c.Set.Value(other), "hypothesis"), !leavesNothing(c, name, other)
			})
		}
	}
	return list
}

// shiftedID is the bug of a tensor that is read some tokens late: old log-probs, which may be the engine's, have one of their own.
func shiftedID(c *stage.Case, name string, by int) string {
	if name == "logp_old" || name == "logp_gen" && c.EnumOr("ratio.old", "stored") == "engine" {
		return map[int]string{1: "OLD-SHIFT", -1: "OLD-SHIFT-BACK"}[by]
	}
	return "OTHER-TENSOR"
}

// leavesNothing reports whether two options are the bounds between which weights are kept, so that with one in place of the other nothing is, but
// for what rounding decides.
func leavesNothing(c *stage.Case, name, other string) bool {
	bounds := []string{"tis.low", "tis.high"}
	return slices.Contains(bounds, name) && slices.Contains(bounds, other) && strings.Contains("zero_outside seq_filter", c.EnumOr("tis.rule", "clamp"))
}

// ofKL returns the id of an edit of the log-probs that an estimate of KL reads: those of other rows or tokens have names there.
func ofKL(ch *stage.Check, id, title string) string {
	switch ch.Stage {
	case convention.KL, convention.Reward, convention.Advantage: // rewards have no other use for log-probs
	default:
		return id
	}
	switch id {
	case "OTHER-TENSOR":
	case "OLD-IS-GEN":
		return "KL-OF-GEN"
	case "OLD-RECOMPUTED":
		return "KL-OF-NEW"
	default:
		return id
	}
	side := map[bool]string{true: "KL-REFERENCE-", false: "KL-POLICY-"}[strings.HasPrefix(title, "logp_ref ")]
	switch {
	case !strings.HasPrefix(title, "logp_"):
		return id
	case strings.Contains(title, " is read one token"):
		return side + "SHIFT"
	case strings.Contains(title, " is read from the row"):
		return side + "ROWS"
	}
	return id
}

// toBF16 rounds to nearest, ties to even, with 8 bits.
func toBF16(x float64) float64 {
	if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return x
	}
	_, exp := math.Frexp(x)
	ulp := math.Ldexp(1, exp-8)
	return math.RoundToEven(x/ulp) * ulp
}

// reversed returns the input in which the rows of every file stand in the reversed order.
func reversed(name string) input {
	return token(name, func(c *stage.Case, x []float64) []float64 {
		y, w := make([]float64, len(x)), len(x)/max(c.B.Rows, 1)
		for _, f := range c.B.Files {
			for r := f.Lo; r < f.Hi; r++ {
				from := f.Hi - 1 - (r - f.Lo)
				copy(y[r*w:(r+1)*w], x[from*w:(from+1)*w])
			}
		}
		return y
	})
}

// rolledRow predicts an output for tensors rolled along their rows. What a dump holds outside the mask may be another number than the program
// had there: cells that would read one are not judged, and of numbers that a whole row makes nothing is predicted.
func rolledRow(names []string, by int, c *stage.Case, ch *stage.Check) *stage.Prediction {
	b := c.B
	known := make([]bool, len(b.Mask))
	in := sameInput
	for _, name := range names {
		x := b.Token(name)
		if x == nil || b.Cols == 0 {
			return nil
		}
		y := make([]float64, len(x))
		for i := range y {
			y[i], known[i] = neighbour(c, x, i, 0, -by)
		}
		in = both(in, perToken(name, y))
	}
	p := under(in, c, ch)
	if p == nil || len(p.Want) != len(known) {
		return nil
	}
	q := *p
	q.Judge = make([]bool, len(known))
	for i := range known {
		q.Judge[i] = known[i] && b.Mask[i] && (p.Judge == nil || p.Judge[i])
	}
	return &q
}

// kindOf returns what kind of number an option is: a program takes one coefficient for another, not for a temperature.
func kindOf(name string) string {
	group, rest, _ := strings.Cut(name, ".")
	switch {
	case rest == "coef" || name == "kl.beta":
		return "coefficient"
	case strings.HasSuffix(rest, "eps"):
		return "epsilon"
	case group == "clip" || name == "value.clip":
		return "range"
	}
	return group
}

// optionID returns the bug that an option with another value is, or another id where the registry knows none.
func optionID(name, other string) string {
	for _, e := range named {
		if e.option == name && e.from == "" && e.to == "" {
			return e.id
		}
	}
	return other
}

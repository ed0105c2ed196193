package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// multiple reports whether the first of the explanations is nothing but the healthy prediction times a number: then the number may
// be another one of those by which results are wrong.
func (t *trial) multiple(exact []Explanation) bool {
	o := t.levels[exact[0].level]
	want, k := exact[0].Outcome.Pred.Want, math.NaN()
	for i, h := range o.Pred.Want {
		switch {
		case math.IsNaN(k) && h != 0:
			k = want[i] / h
		case !(math.Abs(want[i]-k*h) <= 1e-9*math.Abs(want[i])) && !(want[i] == 0 && h == 0):
			return false
		}
	}
	return true
}

// factorHypothesis stands for outputs that are right but for one common factor.
var factorHypothesis = described(&Hypothesis{ID: "FACTOR"})[0]

// factors tries the factors by which results are wrong in practice, but for the sign where a bug that fits says that already.
func (t *trial) factors(told bool) []Explanation {
	o := t.levels[0]
	c := o.Case.Of(o.Case.B, o.Case.Set)
	b := c.B
	ga := c.FactOr("gradient_accumulation_steps", float64(max(b.Meta.MicroBatches, 1)))
	world, group := float64(b.Meta.WorldSize), c.FactOr("num_generations", math.NaN())
	beta := o.Case.Set.Value("kl.beta")
	temperature := o.Case.Set.Value("logp.temperature")
	type named struct {
		name string
		k    float64
	}
	list := []named{{"−1, the sign", -1}, {"gradient_accumulation_steps", ga}, {"world_size", world}, {"2", 2}, {"ln 2, of bits for nats", math.Ln2}, {"rows of the micro-batch", rowsOfFile(b)},
		{"number of micro-batches", float64(len(b.Files))}, {"num_generations", group}, {"columns", float64(b.Cols)}, {"rows", float64(b.Rows)},
		{"tokens of the step", count(b.Mask)}, {"the square of the tokens of the step", count(b.Mask) * count(b.Mask)},
		{"accumulation × world size", ga * world}, {"(accumulation steps + 1)/accumulation steps", (ga + 1) / ga}, {"n/(n−1) of the group", group / (group - 1)}, {"√(n/(n−1)) of the group", math.Sqrt(group / (group - 1))}}
	if s := o.Check.Stage; s == convention.Aggregate || s == convention.Gradient {
		for _, name := range lengthConstants { // by which responses are divided, and what else is as wide as they are
			k := c.FactOr(name, math.NaN())
			list = slices.Insert(list, 0, named{name + "/(columns of prompt and response)", k / float64(columnsWithPrompts(b))}, named{name + "/columns", k / float64(b.Cols)})
		}
	}
	if beta.Kind() == convention.Number {
		list = append(list, named{"kl.beta", beta.Num()})
	}
	if temperature.Kind() == convention.Number {
		list = append(list, named{"temperature", temperature.Num()})
	}
	if o.Check.Stage == convention.KL { // of one token: nothing that is accumulated, or gathered, enters it
		list = slices.DeleteFunc(list, func(f named) bool { return !slices.Contains(ofOneToken, f.name) })
	}
	var found []Explanation
	try := func(name string, k float64) {
		if math.IsNaN(k) || math.IsInf(k, 0) || k == 1 || k == 0 {
			return
		}
		for _, alt := range []bool{false, true} {
			if alt && o.Pred.Alt == nil {
				continue
			}
			if e, ok := t.tryFactor(fmt.Sprintf("× %s (%.6g)", name, k), k, alt); ok && !e.Lead {
				found = append(found, e)
				return
			}
		}
	}
	for _, f := range list {
		if told && f.k == -1 {
			continue
		}
		try(f.name, f.k)
		if f.k != -1 {
			try("1/("+f.name+")", 1/f.k)
		}
	}
	return found
}

// ofOneToken are the factors of a number that is made of the log-probs of one token.
var ofOneToken = []string{"−1, the sign", "2", "ln 2, of bits for nats", "kl.beta", "temperature"}

// tryFactor tries the healthy prediction, or what is as good where a decision is a matter of rounding, times k.
func (t *trial) tryFactor(name string, k float64, alt bool) (Explanation, bool) {
	scaled := func(o *stage.Outcome) *stage.Prediction {
		p := *o.Pred
		base := p.Want
		if alt {
			base = p.Alt
		}
		p.Want, p.Bound, p.Alt = slices.Clone(base), slices.Clone(p.Bound), nil
		for i := range p.Want {
			p.Want[i] *= k
			p.Bound[i] *= math.Abs(k)
		}
		p.Scale *= math.Abs(k)
		return &p
	}
	return t.try(factorHypothesis, name, func(o *stage.Outcome) *stage.Outcome {
		return stage.Compare(o.Check, o.Case, scaled(o), o.Arithmetic)
	})
}

// columnsWithPrompts is the width of the ids of prompts and responses, 0 where they were not dumped.
func columnsWithPrompts(b *dump.Batch) int {
	if ids := b.Tensors["input_ids"]; ids != nil && ids.Layout == dump.PerRow {
		return ids.Width
	}
	return 0
}

func rowsOfFile(b *dump.Batch) float64 {
	if len(b.Files) == 0 {
		return math.NaN()
	}
	return float64(b.Files[0].Hi - b.Files[0].Lo)
}

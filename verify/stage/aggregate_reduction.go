package stage

import (
	"math"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// reduction makes numbers of the tokens of each file one number of the file.
type reduction struct {
	o      []rl.AggOptions // of every file
	slack  float64         // relative: what 1e-8 beside a count can do
	mask   []bool
	tokens []float64 // of every file
}

// kind returns how token losses become one number, which is the same for all files.
func (red *reduction) kind() rl.AggKind {
	if len(red.o) == 0 {
		return rl.AggToken
	}
	return red.o[0].Kind
}

// complete reports whether the files are known to be all of the step.
func (c *Case) complete() bool { return len(c.B.Missing) == 0 && c.B.Meta.MicroBatches > 0 }

// worldSize returns the number of ranks.
func (c *Case) worldSize() float64 {
	w := float64(c.B.Meta.WorldSize)
	for _, f := range c.B.Files {
		w = max(w, float64(f.Rank+1))
	}
	return max(w, 1)
}

// accumulation returns the number of micro-batches that a rank accumulates into the step.
func (c *Case) accumulation() float64 {
	if c.complete() {
		return float64(c.B.Meta.MicroBatches)
	}
	if x := c.FactOr("gradient_accumulation_steps", math.NaN()); !math.IsNaN(x) {
		return x
	}
	if len(c.B.Missing) > 0 {
		note(&c.Absent, "gradient_accumulation_steps")
		return math.NaN()
	}
	var files float64
	for _, f := range c.B.Files {
		if f.Rank == c.B.Files[0].Rank {
			files++
		}
	}
	return files
}

// reduction reads how token losses are aggregated; nil if something is not there.
func (c *Case) reduction() *reduction {
	kind := "token"
	if !c.supervised() {
		kind = c.Enum("agg.kind")
	} else if c.Set.Value("agg.kind").Kind() == convention.Enum {
		kind = c.Enum("agg.kind")
	}
	if kind == "" {
		return nil
	}
	o, rows := c.aggKind(kind)
	o.Outside = rl.OutsideIgnore
	counts := rows || o.Kind == rl.AggToken
	where := "micro"
	if counts || o.Kind == rl.AggTokenSum { // a sum divides by nothing, and is multiplied by the ranks where gradients are averaged over them (verl 0.9.1, agg_loss)
		where = c.denominator()
	}
	if where == "" {
		return nil
	}
	if !counts && where != "global" {
		where = "micro"
	}
	c.aggRows(&o, rows)
	if c.divides() {
		o.Steps = c.accumulation()
	}
	if !c.OK() {
		return nil
	}
	return c.denominators(o, where, counts)
}

// aggKind returns an aggregation of that kind, and whether it counts rows.
func (c *Case) aggKind(kind string) (o rl.AggOptions, rows bool) {
	o.Kind, _ = rl.ParseAggKind(kind)
	if o.Kind == rl.AggSeqSumConst {
		o.DivBatch = c.boolWhere("agg.div_batch")
	}
	return o, o.Kind == rl.AggSeqMeanTokenMean || o.Kind == rl.AggSeqMeanTokenSum || o.DivBatch
}

// aggRows reads how rows are counted, and their tokens.
func (c *Case) aggRows(o *rl.AggOptions, rows bool) {
	if rows {
		o.EmptyRows, _ = rl.ParseAggEmptyRows(c.Enum("agg.empty_rows"))
	}
	if o.Kind == rl.AggSeqMeanTokenMean {
		o.LenEps = c.NumOr("agg.len_eps", 0)
	}
}

// denominator returns agg.denominator. Nobody has to say it where a single file is the step, or where a trainer of the Hugging
// Face kind says how many labels it divides by.
func (c *Case) denominator() string {
	if c.Set.Value("agg.denominator").Kind() == convention.Unknown {
		items := !math.IsNaN(c.FactOr("num_items_in_batch", math.NaN()))
		switch {
		case items && c.supervised():
			return c.EnumOr("agg.denominator", "global")
		case !items && c.complete() && len(c.B.Files) == 1:
			return c.EnumOr("agg.denominator", "micro")
		}
	}
	return c.inapplicable("agg.denominator", "micro")
}

// boolWhere is Bool for an option that is false where it does not apply.
func (c *Case) boolWhere(name string) bool {
	if c.Set.Value(name).Kind() == convention.NotApplicable {
		return c.BoolOr(name, false)
	}
	return c.Bool(name)
}

// divides returns agg.div_ga: whether the loss is divided by the accumulation steps.
func (c *Case) divides() bool {
	undivided := c.supervised() || c.preference() || c.complete() && c.B.Meta.MicroBatches == 1
	if undivided && c.Set.Value("agg.div_ga").Kind() == convention.Unknown {
		return c.BoolOr("agg.div_ga", false)
	}
	return c.boolWhere("agg.div_ga")
}

// denominators counts tokens and rows where agg.denominator says, and returns the options of every file:
//
//	micro     counts of the file
//	rank      counts of all files of the rank
//	global    counts of all files of the step, divided by the number of ranks, since gradients are averaged over ranks; the
//	          tokens of a run that knows num_items_in_batch are num_items·accumulation/steps_per_generation (TRL dapo)
//	constant  the fact loss_denominator (open-instruct), tokens or rows
func (c *Case) denominators(o rl.AggOptions, where string, counts bool) *reduction {
	b := c.B
	red := &reduction{o: make([]rl.AggOptions, len(b.Files)), mask: c.lossMask(), tokens: make([]float64, len(b.Files))}
	tokens, rows := red.tokens, make([]float64, len(b.Files))
	for f, file := range b.Files {
		for r := file.Lo; r < file.Hi; r++ {
			var n float64
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				if red.mask[i] {
					n++
				}
			}
			tokens[f] += n
			if n > 0 || o.EmptyRows == rl.AggCounted {
				rows[f]++
			}
		}
	}
	if counts && len(b.Missing) > 0 && (where == "rank" || where == "global" && !c.knowsItems(o)) {
		note(&c.Absent, "the files missing from the step ("+b.Missing[0]+")")
		return nil
	}
	var all, allRows float64
	for f := range b.Files {
		all += tokens[f]
		allRows += rows[f]
	}
	eps := c.Default("mean.eps", 0)
	red.slack = 0
	for f, file := range b.Files {
		a := o
		n, r := tokens[f], rows[f]
		switch where {
		case "rank":
			a.Denominator, n, r = rl.AggRank, 0, 0
			for g, other := range b.Files {
				if other.Rank == file.Rank {
					n += tokens[g]
					r += rows[g]
				}
			}
		case "global":
			a.Denominator, a.Scale = rl.AggGlobal, c.worldSize()
			n, r = all, allRows
			if several := c.severalGenerations(); several != "" && o.Kind == rl.AggToken {
				var whole bool
				if n, whole = c.itemsOfPass(file, tokens); !whole {
					note(&c.Absent, several)
				}
			} else if c.knowsItems(o) {
				n = c.items()
			} else if of, said := c.Set.Fact(GenerationTokens); said && o.Kind == rl.AggToken && !c.supervised() {
				if n = of.(float64) * c.accumulation() / c.Fact("steps_per_generation"); math.IsNaN(n) {
					note(&c.Absent, "num_items_in_batch, or all steps of the generation batch")
				}
			} else if of, said := c.Set.Fact(StepTokens); said && o.Kind == rl.AggToken && !c.supervised() {
				if n = of.(float64); math.IsNaN(n) {
					note(&c.Absent, "all steps of the generation batch")
				}
			}
		case "constant":
			a.Denominator = rl.AggConstant
			n = c.Fact("loss_denominator")
			if f := strings.ToLower(b.Meta.Framework); f == "open-instruct" || f == "open_instruct" { // grpo_fast.py: loss *= world_size, of counts and constants alike
				n /= c.worldSize()
			}
			r = n
		}
		a.Tokens, a.Rows = n, r
		size := n
		if o.Kind != rl.AggToken {
			size = r
		}
		red.slack = max(red.slack, eps/max(size, 1))
		if counts && size == 0 {
			if a.Empty, _ = rl.ParseEmptyRule(c.Enum("mean.empty")); a.Empty == rl.EmptyError {
				a.Empty = rl.EmptyNaN // a loss that is there was not refused
			}
		}
		switch o.Kind {
		case rl.AggSeqSumConst:
			a.Length = c.length(file, where, o.DivBatch)
		case rl.AggLUSPO:
			a.Scale = float64(max(b.Cols, 1)) / float64(max(file.Cols, 1))
		}
		red.o[f] = a
	}
	if !c.OK() {
		return nil
	}
	return red
}

// length is the constant that seq_sum_const divides by: what is declared as the divisor, or else the length of a completion, or the width
// of the file. A loss_denominator that stands for the rows is no length.
func (c *Case) length(file dump.FileInfo, where string, divBatch bool) float64 {
	length := c.FactOr("max_completion_length", float64(max(file.Cols, 1)))
	if where != "constant" || !divBatch {
		length = c.FactOr("loss_denominator", length)
	}
	return c.FactOr("loss_scale_factor", length)
}

// GenerationTokens is the fact that num_items_in_batch is where the dump does not say it, NaN if that cannot be counted.
const GenerationTokens = "tokens of the generation batch"

// GenerationRanks are those of every rank, and GenerationAttended those that attention shows in its responses.
const (
	GenerationRanks    = "tokens of the ranks in the generation batch"
	GenerationAttended = "attended tokens of the responses of the generation batch"
)

// StepTokens is the fact how many tokens the losses of a step are divided by, where they show that it is a share of those of its generation batch; NaN if
// these cannot be counted.
const StepTokens = "tokens of the generation batch by its steps"

// GenerationSteps is the fact of how many steps that generation batch is.
const GenerationSteps = "steps of the generation batch"

// knowsItems reports whether the run says how many tokens its loss is divided by.
func (c *Case) knowsItems(o rl.AggOptions) bool {
	return o.Kind == rl.AggToken && !math.IsNaN(c.FactOr("num_items_in_batch", math.NaN()))
}

// items returns the tokens of a step by num_items_in_batch, which counts a generation batch of several steps in TRL.
func (c *Case) items() float64 {
	items := c.Fact("num_items_in_batch")
	if per := c.FactOr("steps_per_generation", 0); per > 0 && !c.supervised() {
		items *= c.accumulation() / per
	}
	return items
}

// sums are numbers of the files with what their bounds need: the sums of the magnitudes of their terms, and their errors.
type sums struct {
	x, size, err []float64
}

func (c *Case) newSums() sums {
	n := len(c.B.Files)
	return sums{make([]float64, n), make([]float64, n), make([]float64, n)}
}

// add adds factor·y to s; factor is exact but for its rounding to the format.
func (s *sums) add(factor float64, y sums, u float64) {
	for f := range s.x {
		t := float64(factor * y.x[f])
		s.x[f] += t
		s.size[f] += math.Abs(factor) * y.size[f]
		s.err[f] += math.Abs(factor)*y.err[f] + 2*u*math.Abs(t) + u*math.Abs(s.x[f])
	}
}

// apply aggregates a number per token: L = Σ w·x with
//
//	B = Σ w·e + (fold(n) + 4u)·Σ|w·x| + slack·|L| + (n + 4)·η
//
// for n terms in the longest chain of additions, η for what underflows. poison says of a file that NaN at its masked cells reaches its number.
func (red *reduction) apply(c *Case, x Input, poison func(f int) bool) sums {
	b, u := c.B, c.Unit+tol.U64
	s := c.newSums()
	for f, file := range b.Files {
		lo, hi := file.Lo*b.Cols, file.Hi*b.Cols
		o, part := red.o[f], x.X[lo:hi]
		if poison != nil && c.unclean(part, red.mask[lo:hi], lo) && poison(f) {
			o.Outside = rl.OutsidePropagate
		}
		if o.Kind == rl.AggLUSPO {
			part = c.ownCells(part, lo)
		}
		total, w, err := rl.Aggregate(nil, part, red.mask[lo:hi], file.Hi-file.Lo, b.Cols, o)
		if err != nil {
			total = math.NaN()
		}
		s.x[f] = total
		for i, weight := range w {
			if weight != 0 {
				s.size[f] += math.Abs(weight * part[i])
				if x.Err != nil {
					s.err[f] += math.Abs(weight) * x.Err[lo+i]
				}
			}
		}
		n := red.chain(f, file.Lo, file.Hi, b.Cols)
		s.err[f] += (foldError(n, c.Unit)+4*u)*s.size[f] + red.slack*math.Abs(total)
		if x.Half > 0 && !math.IsNaN(total) {
			s.err[f] += x.Half * red.promotedSums(part, w, file.Hi-file.Lo, b.Cols, total)
			if steps := o.Steps; steps > 1 && math.Exp2(math.Round(math.Log2(steps))) != steps { // a division by a power of two is exact
				s.err[f] += x.Half * math.Abs(total)
			}
		}
		if c.Unit >= tol.U32 {
			s.err[f] += float64(n+4) * tol.Eta32
		}
	}
	return s
}

// promotedSums returns what is rounded on the way to a total where the terms have a 16-bit type, whose sums are accumulated in float32 and
// rounded once: the sum and its division, and of a mean over rows the sum and the division of every row besides.
func (red *reduction) promotedSums(x, w []float64, rows, cols int, total float64) float64 {
	size := 2 * math.Abs(total)
	if k := red.kind(); k == rl.AggToken || k == rl.AggTokenSum {
		return size
	}
	for r := range rows {
		var row float64
		for i := r * cols; i < (r+1)*cols; i++ {
			if w[i] != 0 {
				row += float64(w[i] * x[i])
			}
		}
		size += 2 * math.Abs(row)
	}
	return size
}

// chain returns the number of terms that are added one to the other in file f.
func (red *reduction) chain(f, lo, hi, cols int) int {
	if k := red.o[f].Kind; k != rl.AggSeqMeanTokenMean && k != rl.AggSeqMeanTokenSum {
		if k == rl.AggLUSPO {
			return (hi - lo) * cols
		}
		return int(red.tokens[f])
	}
	longest := 0
	for r := lo; r < hi; r++ {
		n := 0
		for _, m := range red.mask[r*cols : (r+1)*cols] {
			if m {
				n++
			}
		}
		longest = max(longest, n)
	}
	return longest + hi - lo
}

// unclean reports whether a masked cell of the file's own holds NaN or an infinity.
func (c *Case) unclean(x []float64, mask []bool, lo int) bool {
	for i, v := range x {
		if !mask[i] && (math.IsNaN(v) || math.IsInf(v, 0)) && extent(c.B, lo+i) {
			return true
		}
	}
	return false
}

// ownCells returns x with 0 in the cells that were filled up.
func (c *Case) ownCells(x []float64, lo int) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		if extent(c.B, lo+i) {
			y[i] = v
		}
	}
	return y
}

// poisoned returns a func that says whether masked cells reach the number called name of a file: they do not if it is finite;
// if it is NaN, mean.nan_outside decides.
func (c *Case) poisoned(name string) func(f int) bool {
	got := c.B.PerFile(name)
	return func(f int) bool {
		if got == nil || !math.IsNaN(got[f]) {
			return false
		}
		return c.inapplicable("mean.nan_outside", "propagate") == "propagate"
	}
}

// prediction turns sums into the prediction of a number per file. What errors are compared with is the magnitude of the terms:
// a loss may cancel to 1e-8.
func (s sums) prediction(terms func(f int) []Term) *Prediction {
	p := &Prediction{Want: s.x, Bound: s.err, Terms: terms}
	var n float64
	for f, x := range s.size {
		if !math.IsNaN(x) && !math.IsInf(x, 0) {
			p.Scale += float64(x * x)
			n++
		}
		p.settle(f, math.MaxFloat64)
	}
	p.Scale = math.Sqrt(p.Scale / max(n, 1))
	return p
}

// denominatorTerms names what a file's sum is divided by.
func (red *reduction) denominatorTerms(s sums, f int) []Term {
	o := red.o[f]
	t := []Term{{"tokens of the file", red.tokens[f]}}
	switch {
	case o.Kind == rl.AggToken:
		t = append(t, Term{"denominator tokens", o.Tokens})
	case o.Kind == rl.AggSeqSumConst:
		t = append(t, Term{"length constant", o.Length}, Term{"rows", o.Rows})
	case o.Kind == rl.AggSeqMeanTokenMean || o.Kind == rl.AggSeqMeanTokenSum:
		t = append(t, Term{"denominator rows", o.Rows})
	}
	if o.Scale != 0 && o.Scale != 1 {
		t = append(t, Term{"factor", o.Scale})
	}
	if o.Steps != 0 {
		t = append(t, Term{"accumulation steps", o.Steps})
	}
	return append(t, Term{"sum of |terms|", s.size[f]})
}
